"""Recording forwards that run in other threads, as those of `nn.DataParallel` do."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from torch.nn import functional

import jarilab
from jarilab.inspect.intervene.interventions import HeadOff, operate


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("offset", torch.randn(8))

    def forward(self, x):
        q, k = (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in (self.query(x), self.key(x)))
        v = (x + self.offset).unflatten(-1, (2, 4)).transpose(1, 2)
        return functional.scaled_dot_product_attention(q, k, v)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, x):
        return self.attention(x)


def run_in_thread(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def mode_count():
    return torch._C._len_torch_function_stack()


def replica_of(model):
    """What `nn.parallel.replicate` makes on each device."""
    copies = {module: module._replicate_for_data_parallel() for module in model.modules()}
    for module, copy in copies.items():
        copy._former_parameters = {}
        for name, child in module._modules.items():
            setattr(copy, name, copies[child])
        for name, parameter in module._parameters.items():
            copy._former_parameters[name] = parameter.detach().clone()
            setattr(copy, name, copy._former_parameters[name])
        for name, buffer in module._buffers.items():
            copy._buffers[name] = buffer.clone()
    return copies[model]


def test_forward_in_another_thread_is_recorded():
    model, x = Model().eval(), torch.randn(1, 3, 8)
    with jarilab.record(model) as tape:
        modes = run_in_thread(lambda: (model(x), mode_count())[1])
        model(x)
    assert modes == 0
    assert len(tape.calls["attention"]) == 2
    assert tape.weights("attention", 0).equal(tape.weights("attention", 1))
    assert {call.source.facts.relation for call in tape.calls["attention"]} == {"self"}


def test_forwards_of_many_threads_are_all_recorded():
    model = Model().eval()
    batches = torch.randn(40, 2, 3, 8)
    with torch.no_grad():
        expected = [model(x) for x in batches]
    with jarilab.record(model) as tape, ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(torch.no_grad()(model), batches))
    assert all(one.equal(other) for one, other in zip(outputs, expected, strict=True))
    calls = tape.calls["attention"]
    assert len(calls) == 40
    assert {call.source.facts.relation for call in calls} == {"self"}
    assert max(tape.trust("attention", index).rebuild_error for index in range(40)) < 1e-6


def test_error_in_another_thread_leaves_no_mode():
    model = Model().eval()

    def fail():
        try:
            model(torch.randn(1, 3, 7))
        except RuntimeError:
            return mode_count()

    with jarilab.record(model):
        assert run_in_thread(fail) == 0
        model(torch.randn(1, 3, 8))


def test_nested_recordings_of_another_thread_are_equal():
    model, x = Model().eval(), torch.randn(1, 3, 8)
    with jarilab.record(model) as outer, jarilab.record(model) as inner:
        assert run_in_thread(lambda: (model(x), mode_count())[1]) == 0
    assert outer.weights("attention").equal(inner.weights("attention"))


def test_replicas_are_recorded_at_the_sites_of_the_model():
    model, x = Model().eval(), torch.randn(4, 3, 8)
    with jarilab.record(model) as whole:
        model(x)
    with jarilab.record(model) as tape:
        for half in x.chunk(2):
            replica = replica_of(model)
            run_in_thread(lambda replica=replica, half=half: replica(half))
    weights = [tape.weights("attention", index) for index in range(2)]
    assert torch.cat(weights).allclose(whole.weights("attention"), atol=1e-6)
    assert [call.source.facts.relation for call in tape.calls["attention"]] == ["self", "self"]


def test_edits_apply_in_another_thread():
    model, x = Model().eval(), torch.randn(1, 3, 8)
    with operate(model, [HeadOff("attention", 1)]):
        here, there = model(x), run_in_thread(lambda: model(x))
    assert here.equal(there)
    assert there[:, 1].abs().max() == 0


class Waiting(Model):
    """A model whose second forward waits."""

    def __init__(self):
        super().__init__()
        self.started, self.go = threading.Event(), threading.Event()

    def forward(self, x):
        if threading.current_thread() is not threading.main_thread():
            self.started.set()
            self.go.wait(10)
        return super().forward(x)


def test_thread_that_outlives_the_recording_continues_unrecorded():
    model, x = Waiting().eval(), torch.randn(1, 3, 8)
    outputs = []
    thread = threading.Thread(target=lambda: outputs.extend((model(x), model(x))))
    with jarilab.record(model) as tape:
        thread.start()
        model.started.wait(10)
        model(x)
    model.go.set()
    thread.join()
    assert len(tape.calls["attention"]) == 1
    assert all(output.equal(model(x)) for output in outputs)
    assert len(outputs) == 2


def test_a_tape_is_freed_with_its_last_name():
    """Without Python's collector of cycles, so that recording in a loop does not grow."""
    model = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True).eval()
    gc.collect()
    gc.disable()
    try:
        with torch.no_grad(), jarilab.record(model) as tape:
            model(torch.randn(1, 3, 16))
        call = weakref.ref(tape.calls[tape.sites[0]][0])
        del tape
        assert call() is None
    finally:
        gc.enable()
