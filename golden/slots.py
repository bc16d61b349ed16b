"""What every scenario shares: bit-exact moves and the tokens whose rows survive."""

from __future__ import annotations

import torch
from torch import Tensor

_INTEGER_OF_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: Tensor) -> Tensor:
    """The same memory, shape and strides seen as integers, so that a copy keeps NaN payloads and -0.0.

    The operator's specification, section 1: everything except the Rope mean is a pure byte copy.
    """
    return tensor.view(_INTEGER_OF_WIDTH[tensor.element_size()])


def live_tokens(slot_mapping: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    """The tokens that write and their slots: two int64 tensors of one length, no slot twice.

    A negative slot is padding and a slot at or past ``capacity`` is outside the cache: both are skipped. Of several
    tokens on one slot the last one stays (the operator's specification, section 3).
    """
    token_of_slot = {slot: token for token, slot in enumerate(slot_mapping.tolist()) if 0 <= slot < capacity}
    tokens, slots = list(token_of_slot.values()), list(token_of_slot)
    return slot_mapping.new_tensor(tokens, dtype=torch.int64), slot_mapping.new_tensor(slots, dtype=torch.int64)
