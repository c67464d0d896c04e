"""Which token a row of a forward is, by ids, mask and cache."""

from __future__ import annotations

import pytest
import torch
from tiny_decoder import KeyValues, LayerKeys, sequences

from pytest_precision.rollout.token_rows import NO_TOKEN, TokenRows, coded, places_of


def test_padding_is_no_token() -> None:
    """On either side of a row, by the mask, also if its id is that of the last token."""
    rows = TokenRows([torch.tensor([5, 6]), torch.tensor([8, 9])])
    padded = torch.tensor([[5, 6, 6], [8, 8, 9]])
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]])
    rows.read((), {"input_ids": padded, "attention_mask": mask})
    assert rows.codes is not None
    second = [NO_TOKEN, coded((1, 0)), coded((1, 1))]
    assert rows.codes.tolist() == [[coded((0, 0)), coded((0, 1)), NO_TOKEN], second]
    assert rows.unused == []


def test_wrong_positions_do_not_hide_a_token() -> None:
    """A forward that is given them is the defect that is looked for."""
    (ids,) = sequences(9)
    rows = TokenRows([ids])
    rows.read((ids[None],), {"position_ids": torch.arange(9)[None] + 1})
    assert rows.codes is not None
    assert rows.codes.tolist() == [list(range(9))]


def test_rows_of_one_prompt_are_told_apart() -> None:
    """Two samples of a prompt are two sequences, also before they differ and while they decode."""
    ids = [torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 3, 9])]
    rows = TokenRows(ids)
    rows.read((torch.tensor([[1, 2], [1, 2]]),), {})
    cache = KeyValues([LayerKeys(torch.zeros(2, 1, 2, 1), torch.zeros(2, 1, 2, 1))])
    rows.read((torch.tensor([[3], [3]]),), {"past_key_values": cache})
    assert rows.codes is not None
    assert rows.codes.tolist() == [[coded((0, 2))], [coded((1, 2))]]


def test_a_row_goes_on_with_its_sequence() -> None:
    """Whatever their order in the batch, and although both have the same token there."""
    rows = TokenRows([torch.tensor([1, 2, 3]), torch.tensor([4, 5, 3])])
    rows.read((torch.tensor([[4, 5], [1, 2]]),), {})
    cache = KeyValues([LayerKeys(torch.zeros(2, 1, 2, 1), torch.zeros(2, 1, 2, 1))])
    rows.read((torch.tensor([[3], [3]]),), {"past_key_values": cache})
    assert rows.codes is not None
    assert rows.codes.tolist() == [[coded((1, 2))], [coded((0, 2))]]


def test_packed_sequences_need_no_positions() -> None:
    """Each begins where the one before it ends, also if the last tokens are left out."""
    ids = sequences(6, 8)
    rows = TokenRows(ids)
    rows.read((torch.cat([ids[0][:-1], ids[1][:-1]])[None],), {})
    assert rows.codes is not None
    expected = [coded((0, p)) for p in range(5)] + [coded((1, p)) for p in range(7)]
    assert rows.codes.tolist() == [expected]


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_a_mask_of_each_row_tells_its_place(dtype: torch.dtype) -> None:
    """Of a static cache there is no mask of the tokens, but what each row may attend to."""
    allowed = torch.tensor([[[0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0]]]).bool()
    mask = allowed if dtype is torch.bool else torch.where(allowed, 0.0, -1e9)
    places = places_of(torch.zeros(1, 3).long(), {"attention_mask": mask.unsqueeze(1)})
    assert places.tolist() == [[NO_TOKEN, 0, 1]]


def test_another_id_is_noticed() -> None:
    """A text that was encoded anew has others, from some token on."""
    (ids,) = sequences(9)
    other = ids.clone()
    other[4] += 1
    rows = TokenRows([ids])
    rows.read((other[None],), {})
    assert rows.unused == [0]
    assert rows.strange == (0, 4, int(other[4]))
