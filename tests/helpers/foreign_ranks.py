"""Records models of another library on two processes, as copies (DDP) and in shards (FSDP2), and prints the differences
of their maps from those of the plain model.

    python foreign_ranks.py STORE

The second process is a fork of the first. Both meet in the file STORE.
"""

import json
import logging
import os
import sys
import warnings

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import jarilab
from helpers.architectures import MODELS

LAYERS = {"GPT2Block", "T5Block"}


def build(name):
    torch.manual_seed(0)
    return MODELS[name]()


def recorded(model, inputs):
    with torch.no_grad(), jarilab.record(model) as tape:
        model(**inputs)
    return tape


def shard(model):
    for part in list(model.modules()):
        if type(part).__name__ in LAYERS:
            fully_shard(part)
    return fully_shard(model)


def largest_difference(tape, plain):
    assert tape.sites == plain.sites
    return max((tape.weights(site) - plain.weights(site)).abs().max().item() for site in plain.sites)


logging.disable(logging.WARNING)
warnings.simplefilter("ignore")
child = os.fork()
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=int(not child), world_size=2)
differences = {}
for name in ("GPT2", "T5"):
    model, inputs = build(name)
    plain = recorded(model, inputs)
    copies = recorded(DistributedDataParallel(build(name)[0]), inputs)
    shards = recorded(shard(build(name)[0]), inputs)
    trusts = [shards.trust(site).rebuild_error for site in shards.sites]
    differences[name] = [largest_difference(copies, plain), largest_difference(shards, plain), max(trusts)]
dist.destroy_process_group()
if child:
    _, status = os.waitpid(child, 0)
    assert status == 0
    print("DIFFERENCES", json.dumps(differences))
