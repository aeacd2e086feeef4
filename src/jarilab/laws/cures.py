"""What to change in an encoding that breaks a law."""

CURES = {
    "training and evaluation agree": "compute the same in both modes, or set random_in_training = True",
    "calls leave nothing behind": "store nothing that depends on positions, parameters or precision; write into no "
    "tensor that you are given",
    "instances share nothing": "store tables on the instance, never on the class or the module",
    "agrees with its formula": "correct the hook or the oracle: one of them is wrong at the positions, sizes or "
    "options named above",
    "a position means the same among any others": "use pos.coordinates or distance(q_pos, k_pos), never the number of "
    "a token among those given; or set depends_on_length = True",
    "every kernel equals the definition": "return the result in the dtype of the input, and keep it differentiable",
    "a query without a key gives zeros": "mask with finite numbers, and divide by no sum that may be 0",
    "hooks by distance are as claimed": "let the distance form return what the hook returns",
    "results agree across precisions": "compute angles and distances in float64 or float32, and cast the result last; "
    "choose no other path by dtype, autocast or compiler",
    "every number of heads works": "compute slopes, tables and widths for any n_heads and d_head, also for those that "
    "are no power of two",
    "gradients match finite differences": "remove .detach(), .data and no_grad, and rounding of what should learn",
    "cached decoding equals the full forward": "use positions, never the number of queries or keys of one call",
    "padding changes no real token": "use positions, never indices in the row, and average over no keys",
    "packed documents equal separate ones": "use pos.coordinates, which restart, never pos.order",
    "shift invariance is as claimed": "set shift_invariant to what holds, or use distances only",
    "rotation keeps norms": "rotate by sine and cosine of one angle, or set keeps_norms = False",
    "output depends on token order": "return what depends on positions, or set uses_order = False",
    "the longest position is enforced": "return the number of positions as max_positions, and raise a UserError that "
    "names a position beyond",
    "fractional positions are as claimed": "interpolate, or set integer_only = True and raise a UserError",
    "round trips change nothing": "register tensors as parameters or buffers; draw random numbers in reset() alone",
    "every parameter learns": "use the parameter in a hook, or remove it",
    "unplaced tokens get no position": "mask with pos.unplaced_mask, or with undefined_pairs(q_pos, k_pos)",
    "samples do not mix": "keep the batch axis of the positions, and broadcast from the right",
    "a grid of one row is a line": "treat the columns of one row as the positions of a line",
    "initial values are those of the seed": "draw from the given generator alone, fill every parameter, and set no "
    "default of torch",
}
"""One sentence for each law of `LAWS`."""
