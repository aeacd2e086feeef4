"""Optimizers: Muon for matrices, AdamW for the rest."""

from __future__ import annotations

import torch
from torch import nn

from jarilab.encodings.base import Encoding
from jarilab.nn.layers import Table, TokenEmbedding
from jarilab.runs.options import Training
from jarilab.training.muon import StackedMuon
from jarilab.training.uncompiled import AdamW

BETAS, EPSILON = (0.9, 0.98), 1e-9  # the paper's, section 5.3


def build_optimizers(model: nn.Module, options: Training) -> dict[str, torch.optim.Optimizer]:
    """One optimizer or two, by name.

    Muon orthogonalises the update of a matrix that maps vectors to vectors. Tables of vectors (embeddings, what an
    encoding owns, the generator, whose rows are tokens or classes) are none, whatever their shape; nor are the weights
    of a recurrent cell, which hold one matrix for each gate.
    """
    matrices, rest = [], []
    for owner_name, owner in model.named_modules():
        for name, parameter in owner.named_parameters(recurse=False):
            full_name = f"{owner_name}.{name}" if owner_name else name
            table = (
                isinstance(owner, Table | TokenEmbedding | Encoding | nn.RNNBase)
                or owner_name == "generator"
            )
            (matrices if parameter.ndim == 2 and not table else rest).append((full_name, parameter))
    rate, decay = options.lr, options.weight_decay
    if options.optimizer == "adamw":
        groups = [
            {"params": matrices, "weight_decay": decay},
            {"params": rest, "weight_decay": 0.0},
        ]
        return {"adamw": AdamW(groups, lr=rate, betas=BETAS, eps=EPSILON, fused=True)}
    # match_rms_adamw scales the update like AdamW's, so that one learning rate serves both.
    return {
        "muon": StackedMuon(matrices, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"),
        "adamw": AdamW(rest, lr=rate, betas=BETAS, eps=EPSILON, weight_decay=0.0, fused=True),
    }
