"""How many linear layers a model computes."""

from torch.overrides import TorchFunctionMode

from jarilab.inspect.intervene.linear_memory import LINEAR


class Count(TorchFunctionMode):
    """Counts the linear layers that are computed inside its block."""

    def __init__(self):
        super().__init__()
        self.layers = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.layers += func in LINEAR
        return func(*args, **(kwargs or {}))
