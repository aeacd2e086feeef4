"""The operators of core ATen that a page computes: those of `pages/kit/static/program/`, held against these by a test.

To teach the page another: a function in one of these modules, under its name, and the name here.
"""

_NAMES = """
_log_softmax.default _softmax.default _to_copy.default _unsafe_view.default abs.default
add.Scalar add.Tensor addmm.default alias.default all.default all.dim all.dims amax.default
amin.default any.default any.dim any.dims arange.default arange.start arange.start_step
argmax.default argmin.default atan.default atan2.default baddbmm.default bitwise_and.Scalar
bitwise_and.Tensor bitwise_not.default bitwise_or.Scalar bitwise_or.Tensor bitwise_xor.Tensor
bmm.default cat.default ceil.default clamp.Tensor clamp.default clamp_max.default
clamp_min.default clone.default constant_pad_nd.default cos.default cumsum.default
detach.default div.Scalar div.Scalar_mode div.Tensor div.Tensor_mode dot.default
embedding.default empty.memory_format eq.Scalar eq.Tensor erf.default exp.default
exp2.default expand.default expm1.default fill.Scalar flip.default floor.default fmod.Scalar
fmod.Tensor full.default full_like.default gather.default ge.Scalar ge.Tensor gelu.default
gt.Scalar gt.Tensor hypot.default index.Tensor index_select.default isinf.default isnan.default le.Scalar
le.Tensor lift_fresh_copy.default log.default log10.default log1p.default log2.default
logical_and.default logical_not.default logical_or.default logical_xor.default lt.Scalar
lt.Tensor masked_fill.Scalar masked_fill.Tensor max.default max.dim maximum.default
mean.default mean.dim min.default min.dim minimum.default mm.default mul.Scalar mul.Tensor
mv.default native_layer_norm.default ne.Scalar ne.Tensor neg.default new_zeros.default
ones.default ones_like.default operator.add operator.floordiv operator.getitem operator.mod
operator.mul operator.neg operator.pow operator.sub operator.truediv permute.default
pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor prod.default prod.dim_int reciprocal.default
relu.default remainder.Scalar remainder.Tensor repeat.default reshape.default round.default
rsqrt.default scalar_tensor.default scatter.src scatter.value scatter_add.default select.int
sigmoid.default sign.default silu.default sin.default slice.Tensor split.Tensor
split_with_sizes.default sqrt.default squeeze.default squeeze.dim squeeze.dims stack.default
sub.Scalar sub.Tensor sum.default sum.dim_IntList sym_numel.default sym_size.int t.default
tan.default tanh.default torch.sym_float torch.sym_int torch.sym_max torch.sym_min
transpose.int tril.default triu.default trunc.default unbind.int unsqueeze.default
var.correction var.dim view.default where.Scalar where.ScalarOther where.ScalarSelf
where.self zeros.default zeros_like.default
"""

OPERATORS = frozenset(_NAMES.split())
