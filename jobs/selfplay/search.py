"""Monte Carlo tree search as AlphaZero's (PUCT), one leaf at a time, so that leaves of many games are evaluated together.

    while not search.done:
        view = search.descend()
        if view is not None:
            search.expand(logits, value)      # of that view

Source: D. Silver et al. 2018, "Search" in the supplement. A move that was never tried counts as a draw; what is known of the
subtree of the move that was made is kept.
"""

from __future__ import annotations

import chess
import encoding
import numpy as np


class Node:
    """A position in the tree; its arrays have an entry for each legal move, in the order of the actions.

    Attributes:
        value: of the position for its side to move: the network's, or that of the rules when the game is over here.
        over: whether it is.
        guess_is_legal: whether the most likely of all 4672 actions, as the bare policy has it, is a legal one.
    """

    __slots__ = ("actions", "children", "guess_is_legal", "moves", "over", "priors", "totals", "value", "visits")

    def __init__(self, moves, actions) -> None:
        self.moves, self.actions = moves, actions
        self.children: list[Node | None] = [None] * len(moves)
        self.visits = np.zeros(len(moves))
        self.totals = np.zeros(len(moves))  # of values for the side to move
        self.priors = np.zeros(len(moves))
        self.value, self.over, self.guess_is_legal = 0.0, False, False


class Search:
    """The tree of one side in one game.

    Args:
        line: the game; is as it was whenever no leaf is open.
        simulations: leaves to look at for each move.
        exploration: PUCT's constant.
        noise: share of Dirichlet noise in the priors of the position to move in; 0 for none.
        dirichlet: the noise's parameter.
        rng: for the noise.
    """

    def __init__(self, line, *, simulations, exploration, noise=0.0, dirichlet=0.3, rng=None) -> None:
        self._line, self._simulations, self._exploration = line, simulations, exploration
        self._noise, self._dirichlet, self._rng = noise, dirichlet, rng
        self._path: list[tuple[Node, int]] = []  # from the root to the open leaf
        self._open: Node | None = None
        self.root: Node | None = None
        self._simulations_left = simulations

    @property
    def done(self) -> bool:
        """Whether all simulations for this move are done."""
        return self.root is not None and self._simulations_left == 0

    def descend(self) -> encoding.View | None:
        """Do one simulation down to a leaf: the input of the network, or None when the rules know its value."""
        node = self.root
        while node is not None and not node.over:
            index = self._choose(node)
            self._path.append((node, index))
            self._line.push(node.moves[index])
            node = node.children[index]
        if node is None:
            node = self._open = self._leaf()
        if not node.over:
            return self._line.view()
        self._back(node)
        return None

    def expand(self, logits: np.ndarray, value: float) -> None:
        """Give the open leaf the network's evaluation.

        Args:
            logits: of the 4672 actions.
            value: for the side to move.
        """
        node = self._open
        legal = logits[node.actions].astype(np.float64)
        likely = np.exp(legal - legal.max())
        node.priors = likely / likely.sum()
        node.guess_is_legal = bool((node.actions == logits.argmax()).any())
        node.value = float(value)
        self._back(node)

    def advance(self, move: chess.Move) -> None:
        """Go on to where a move leads that the caller makes on the line; it may be one that this tree never tried."""
        root, self.root = self.root, None
        if root is not None:
            self.root = root.children[root.moves.index(move)]
        self._simulations_left = self._simulations
        self._stir()

    def _leaf(self) -> Node:
        """A node of where the line is now, put into the tree."""
        moves, actions = encoding.legal(self._line.board)
        node = Node(moves, actions)
        if not moves:
            node.over, node.value = True, -1.0 if self._line.board.is_check() else 0.0
        elif self._path and self._line.drawn():  # of a root the game knows that it goes on
            node.over = True
        if self._path:
            parent, index = self._path[-1]
            parent.children[index] = node
        return node

    def _choose(self, node: Node) -> int:
        tried = node.visits
        mean = node.totals / np.maximum(tried, 1)
        bonus = self._exploration * node.priors * (np.sqrt(tried.sum() + 1) / (1 + tried))
        return int((mean + bonus).argmax())

    def _back(self, node: Node) -> None:
        """Add the leaf's value to all moves on the way to it, and take them back."""
        self._open, value = None, node.value
        if not self._path:  # the first position of a tree: no simulation of any move yet
            self.root = node
            self._stir()
            return
        for parent, index in reversed(self._path):
            value = -value
            parent.visits[index] += 1
            parent.totals[index] += value
            self._line.pop()
        self._path.clear()
        self._simulations_left -= 1

    def _stir(self) -> None:
        """Mix noise into the root's priors, so that each move has a chance to be tried."""
        if self.root is not None and self._noise and len(self.root.moves):
            noise = self._rng.dirichlet([self._dirichlet] * len(self.root.moves))
            self.root.priors = (1 - self._noise) * self.root.priors + self._noise * noise


def together(searches: list[Search], evaluate) -> None:
    """One simulation of each search; the leaves are evaluated together.

    Args:
        searches: of different games.
        evaluate: views → logits and values.
    """
    opened = [(search, view) for search in searches if (view := search.descend()) is not None]
    if opened:
        logits, values = evaluate([view for _, view in opened])
        for (search, _), policy, value in zip(opened, logits, values, strict=True):
            search.expand(policy, value)
