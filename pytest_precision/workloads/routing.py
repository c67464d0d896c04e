"""Choose the experts of each token, and find which experts drop a token beyond capacity."""

from __future__ import annotations

import torch
from torch import nn

EXPERTS_PER_TOKEN = 2
"""The number of experts that a token goes to."""


class Router(nn.Module):
    """Chooses the experts of each token, and their weights in the result.

    The last expert is reserved for rare tokens, which always go to it. So the data determine when
    it is idle, and the weights do not.

    Attributes:
        chosen: the experts that the last forward returned.
        margin: fp32 `[tokens]`, by how much the last of them was ahead of the first one not chosen.
        excess: fp32 `[tokens]`, the auxiliary loss of the last forward, which has a gradient: the
            square of the logarithm of the partition function.
        prior: fp32 `[experts]`, added to the logits; a buffer, which is not trained.
    """

    high_precision = True  # so that quantized layouts leave its linear layer alone

    chosen: torch.Tensor
    margin: torch.Tensor
    excess: torch.Tensor
    prior: torch.Tensor

    def __init__(self, experts: int, width: int) -> None:
        super().__init__()
        self.logits = nn.Linear(width, experts)
        self.register_buffer("prior", torch.zeros(experts))

    def forward(self, x: torch.Tensor, rare: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose two experts for each token, with the weights of their results.

        Args:
            x: `[tokens, width]`.
            rare: bool `[tokens]`, whether a token is rare.

        Returns:
            The experts, int64 `[tokens, 2]`, and their shares, fp32 `[tokens, 2]`.
        """
        logits = self.logits(x).float() + self.prior
        self.excess = logits.logsumexp(-1).square()
        wish = logits.detach().clone()
        wish[:, -1] = torch.where(rare, torch.inf, -torch.inf)
        # A stable sort, unlike topk, defines which of two equal logits comes first.
        wish, order = wish.sort(dim=-1, descending=True, stable=True)
        chosen = order[:, :EXPERTS_PER_TOKEN]
        self.chosen = chosen
        self.margin = wish[:, EXPERTS_PER_TOKEN - 1] - wish[:, EXPERTS_PER_TOKEN]
        return chosen, logits.gather(1, chosen).softmax(-1)


def over_capacity(
    chosen_tensor: torch.Tensor, shares: torch.Tensor, capacity: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which tokens the experts drop beyond their capacity, and how close each decision was.

    An expert drops the tokens of smallest weight first, and among equal ones the later ones.

    Args:
        chosen_tensor: the experts of each token, int64 `[tokens, 2]`.
        shares: their shares, fp32 `[tokens, 2]`.
        capacity: number of tokens that an expert takes.

    Returns:
        Whether a token is dropped, bool `[tokens, 2]`, and by how much its shares would have to be
        others for another outcome, fp32 `[tokens]`.
    """
    if not len(chosen_tensor):
        return torch.zeros_like(chosen_tensor, dtype=torch.bool), shares.detach().amin(1)
    experts = chosen_tensor.flatten()
    share = shares.detach().flatten()
    place = torch.arange(len(share), device=share.device)
    rivals = experts == experts.unsqueeze(1)
    lead = share - share.unsqueeze(1)
    ahead = rivals & ((lead > 0) | ((lead == 0) & (place < place.unsqueeze(1))))
    dropped = ahead.sum(1) >= capacity
    fates = rivals & (dropped != dropped.unsqueeze(1))
    margin = lead.abs().masked_fill(~fates, torch.inf).amin(1)
    return dropped.view_as(chosen_tensor), margin.view_as(chosen_tensor).amin(1)
