"""Rotary position embeddings on the CPU, computed in fp32 and rounded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from pytest_precision.te.enums import NVTE_QKV_Format


def fused_rope_forward(
    input: Tensor,
    freqs: Tensor,
    start_positions: Tensor | None,
    qkv_format: int,
    interleaved: bool,
    cu_seqlens: Tensor | None,
    cp_size: int,
    cp_rank: int,
) -> Tensor:
    """Apply rotary embeddings to the first columns of each head, and copy the other columns.

    Args:
        input: [sequence, batch, heads, columns], [batch, sequence, ...], or [tokens, ...] of packed
            sequences.
        freqs: fp32 [positions, 1, 1, turned columns], the angles.
        start_positions: position of the first token of each sequence; 0 if None.
        qkv_format: the order of the dimensions of `input`.
        interleaved: whether a pair are neighbours; otherwise its columns lie half a head apart.
        cu_seqlens: where each sequence begins, if they are packed; rows after the last one, which
            the kernel leaves unset, become 0.
        cp_size: number of ranks that share each sequence, of which each has two pieces, one from
            the front and one from the back.
        cp_rank: number of this rank.
    """
    position = start_positions, qkv_format, cu_seqlens, cp_size, cp_rank
    return _applied(turned, input, freqs, interleaved, *position)


def fused_rope_backward(
    output_grads: Tensor,
    freqs: Tensor,
    start_positions: Tensor | None,
    qkv_format: int,
    interleaved: bool,
    cu_seqlens: Tensor | None,
    cp_size: int,
    cp_rank: int,
) -> Tensor:
    """Return the gradient of a rotary embedding's input from that of its output."""
    position = start_positions, qkv_format, cu_seqlens, cp_size, cp_rank
    return _applied(turned_back, output_grads, freqs, interleaved, *position)


def fused_qkv_rope_forward(
    qkv_input: Tensor,
    q_freqs: Tensor,
    k_freqs: Tensor,
    start_positions: Tensor | None,
    qkv_split_arg_list: Sequence[int],
    qkv_format: int,
    interleaved: bool,
    cp_size: int,
    cp_rank: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Split a QKV projection into its parts, and apply rotary embeddings to Q and K."""
    width = qkv_split_arg_list[1]
    parts = torch.split(qkv_input, list(qkv_split_arg_list), -1)
    queries, keys, values = (part.reshape(*part.shape[:2], -1, width) for part in parts)
    # On several ranks the kernel does not read where sequences start.
    starts = start_positions if cp_size == 1 else None
    position = (starts, qkv_format, interleaved, None, cp_size, cp_rank)
    return (
        fused_rope_forward(queries, q_freqs, *position),
        fused_rope_forward(keys, k_freqs, *position),
        values.clone(),
    )


def fused_qkv_rope_backward(
    q_grad_out: Tensor,
    k_grad_out: Tensor,
    v_grad_out: Tensor,
    q_freqs: Tensor,
    k_freqs: Tensor,
    qkv_split_arg_list: Sequence[int],
    qkv_format: int,
    interleaved: bool,
    cp_size: int,
    cp_rank: int,
) -> Tensor:
    """Return the gradient of a QKV projection from those of rotated Q and K, and of V.

    As in the kernel, start positions of sequences are not taken into account.
    """
    position = (None, qkv_format, interleaved, None, cp_size, cp_rank)
    gradients = (
        fused_rope_backward(q_grad_out, q_freqs, *position),
        fused_rope_backward(k_grad_out, k_freqs, *position),
        v_grad_out,
    )
    groups = k_grad_out.shape[:3]
    parts = zip(gradients, qkv_split_arg_list, strict=True)
    return torch.cat([part.reshape(*groups, width) for part, width in parts], -1)


def turned(x: Tensor, angles: Tensor, interleaved: bool) -> Tensor:
    """Apply rotary embeddings: rotate the first columns by `angles`, and copy the rest."""
    moved = x[..., : angles.shape[-1]].float()
    rotated_columns = moved * angles.cos() + _quarter(moved, interleaved) * angles.sin()
    return torch.cat((rotated_columns.to(x.dtype), x[..., angles.shape[-1] :]), -1)


def turned_back(gradient: Tensor, angles: Tensor, interleaved: bool) -> Tensor:
    """Return the input gradient of the rotary embedding `turned` from its output gradient."""
    moved = gradient[..., : angles.shape[-1]].float()
    rotated_columns = moved * angles.cos() - _quarter(moved * angles.sin(), interleaved)
    return torch.cat((rotated_columns.to(gradient.dtype), gradient[..., angles.shape[-1] :]), -1)


def _quarter(x: Tensor, interleaved: bool) -> Tensor:
    """Map each pair (a, b) to (-b, a), a rotation by 90 degrees."""
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def _applied(
    turn: Callable[[Tensor, Tensor, bool], Tensor],
    x: Tensor,
    freqs: Tensor,
    interleaved: bool,
    start_positions: Tensor | None,
    qkv_format: int,
    cu_seqlens: Tensor | None,
    cp_size: int,
    cp_rank: int,
) -> Tensor:
    """Apply rotary embeddings by calling `turn` with the angles for each token's position."""
    table = freqs.flatten(1)
    if qkv_format == NVTE_QKV_Format.NVTE_THD:
        assert cu_seqlens is not None
        places = _packed_positions(cu_seqlens, start_positions, cp_size, cp_rank)
        output = x.new_zeros(x.shape)
        output[: len(places)] = turn(x[: len(places)], table[places].unsqueeze(1), interleaved)
        return output
    by_sequence = qkv_format == NVTE_QKV_Format.NVTE_SBHD
    places = _positions(x.shape[0 if by_sequence else 1], cp_size, cp_rank).unsqueeze(0)
    if start_positions is not None:
        places = places + start_positions.reshape(-1, 1)
    return turn(x, table[places.t() if by_sequence else places].unsqueeze(2), interleaved)


def _packed_positions(
    cu_seqlens: Tensor, start_positions: Tensor | None, cp_size: int, cp_rank: int
) -> Tensor:
    """Return each token's position in its own sequence, for sequences packed end to end."""
    begins = (cu_seqlens // cp_size).tolist()
    starts = [0] * (len(begins) - 1) if start_positions is None else start_positions.tolist()
    lengths = [end - begin for begin, end in pairwise(begins)]
    parts = zip(lengths, starts, strict=True)
    return torch.cat([_positions(length, cp_size, cp_rank) + start for length, start in parts])


def _positions(length: int, cp_size: int, cp_rank: int) -> Tensor:
    """Return the positions in one sequence of those tokens that this context-parallel rank has."""
    places = torch.arange(length)
    if cp_size == 1:
        return places
    half = length // 2
    front = places[:half] + cp_rank * half
    back = places[half:] + length * cp_size - (cp_rank + 2) * half
    return torch.cat((front, back))
