"""A small residual network: planes of a position → a logit for each of the 4672 actions, and the side to move's value.

The tower of AlphaZero (Silver et al. 2018), as wide and as high as the parameters `channels` and `blocks` say. Its value
head learns a few dozen games by heart, so here the value is read from the tower's means over the board, with dropout, and
from the numbers of pieces. What each piece is worth is learned.
"""

from __future__ import annotations

import encoding
import numpy as np
import torch
from torch import nn

_VALUE_INNER = 8
_PIECES = 12  # the first planes: pieces on the board now


class Block(nn.Module):
    """A residual block: two convolutions, whose result is added to the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the same shape as `x`."""
        inner = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(x + self.second_norm(self.second(inner)))


class Network(nn.Module):
    """The network with its heads for policy and value.

    Args:
        channels: Width of the tower.
        blocks: Number of blocks of the tower.
        dropout: Dropout between the tower and the head for the value.
    """

    def __init__(self, channels: int, blocks: int, dropout: float) -> None:
        super().__init__()
        self.stem = nn.Conv2d(encoding.PLANES, channels, 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(channels)
        self.tower = nn.Sequential(*(Block(channels) for _ in range(blocks)))
        self.policy = nn.Conv2d(channels, encoding.KINDS, 1)
        self.value_inner = nn.Linear(channels, _VALUE_INNER)
        self.value_out = nn.Linear(_VALUE_INNER + _PIECES, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits of shape (rows, 4672) and values of shape (rows,) between -1 and 1."""
        pieces = x[:, :_PIECES].sum((2, 3))
        x = self.tower(torch.relu(self.stem_norm(self.stem(x))))
        logits = self.policy(x).permute(0, 2, 3, 1).flatten(1)  # an action is square · 73 + kind
        inner = torch.relu(self.value_inner(self.dropout(x.mean((2, 3)))))
        return logits, torch.tanh(self.value_out(torch.cat([inner, pieces], 1))).squeeze(1)


def build(p, weights=None) -> Network:
    """Return a network with these weights, or with initial ones, which are the same in all processes.

    Args:
        p: Parameters of the job.
        weights: Result of `weights_of`; None for initial weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(p["first_weights"])
        network = Network(p["channels"], p["blocks"], p["dropout"])
    if weights is not None:
        network.load_state_dict({name: torch.tensor(array) for name, array in weights.items()})
    return network.to(device(), memory_format=torch.channels_last)


def weights_of(network: Network) -> dict[str, np.ndarray]:
    """Return copies of the weights as numpy arrays, by name."""
    return {name: tensor.numpy(force=True).copy(order="C") for name, tensor in network.state_dict().items()}


def device() -> torch.device:
    """Return the GPU if there is one, or else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Evaluator:
    """A network that evaluates any number of positions, always in batches of `rows`, padded with zeros.

    With another batch size, a convolution adds in another order, and the last bits of a float differ. With one batch size,
    the result of a position, and so the game, does not depend on the other positions of its batch.

    Args:
        network: Network, which is switched to evaluation.
        rows: Number of positions of a batch.
    """

    def __init__(self, network: Network, rows: int) -> None:
        self._network, self._rows = network.eval(), rows
        self._device = next(network.parameters()).device
        if self._device.type == "cuda":  # the algorithm must be the same each time, too
            torch.backends.cudnn.benchmark = False
            torch.backends.cudnn.deterministic = True

    @torch.inference_mode()
    def __call__(self, views: list[encoding.View]) -> tuple[np.ndarray, np.ndarray]:
        """Return logits of shape (positions, 4672) and values of shape (positions,), float32."""
        logits, values = [], []
        for first in range(0, len(views), self._rows):
            part = views[first : first + self._rows]
            padded = np.zeros((self._rows, encoding.PLANES, 8, 8), dtype=np.float32)
            padded[: len(part)] = encoding.planes(part)
            batch = torch.from_numpy(padded).to(self._device).contiguous(memory_format=torch.channels_last)
            policy, value = self._network(batch)
            logits.append(policy[: len(part)].cpu().numpy())
            values.append(value[: len(part)].cpu().numpy())
        return np.concatenate(logits), np.concatenate(values)
