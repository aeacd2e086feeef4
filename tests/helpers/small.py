"""Models that are small, and that say something: what a model is initialised with hardly tells its inputs apart."""

from typing import Any

import torch
from torch import nn

SMALL = {"d_model": 16, "n_heads": 2}


def initialised(model: nn.Module) -> Any:
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()
