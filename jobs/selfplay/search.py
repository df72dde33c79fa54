"""AlphaZero's Monte Carlo tree search (PUCT), one leaf at a time, so that leaves of many games are evaluated together.

    while not search.done:
        view = search.descend()
        if view is not None:
            search.expand(logits, value)      # of that view

Source: D. Silver et al. 2018, "Search" in the supplement. A move that was never tried counts as a draw. After a move, its
subtree is kept.
"""

from __future__ import annotations

import chess
import encoding
import numpy as np


class Node:
    """A position in the tree. Its arrays have an entry for each legal move, in the order of the actions.

    Attributes:
        value: Value of the position for its side to move: that of the network, or of the rules at the end of a game.
        over: Whether the game ends here.
        guess_is_legal: Whether the most likely of all 4672 actions is legal, by the policy alone.
    """

    __slots__ = ("actions", "children", "guess_is_legal", "moves", "over", "priors", "totals", "value", "visits")

    def __init__(self, moves, actions) -> None:
        self.moves, self.actions = moves, actions
        self.children: list[Node | None] = [None] * len(moves)
        self.visits = np.zeros(len(moves))
        self.totals = np.zeros(len(moves))  # sums of values for the side to move
        self.priors = np.zeros(len(moves))
        self.value, self.over, self.guess_is_legal = 0.0, False, False


class Search:
    """The tree of one side in one game.

    Args:
        line: Game. It is unchanged whenever no leaf is open.
        simulations: Number of leaves to evaluate for each move.
        exploration: Constant of PUCT.
        noise: Share of Dirichlet noise in the priors of the root; 0 for none.
        dirichlet: Parameter of the noise.
        rng: Generator of the noise.
    """

    def __init__(self, line, *, simulations, exploration, noise=0.0, dirichlet=0.3, rng=None) -> None:
        self._line, self._simulations, self._exploration = line, simulations, exploration
        self._noise, self._dirichlet, self._rng = noise, dirichlet, rng
        self._path: list[tuple[Node, int]] = []  # from the root to the open leaf
        self._open_leaf: Node | None = None
        self.root: Node | None = None
        self._simulations_left = simulations

    @property
    def done(self) -> bool:
        """Whether all simulations for this move are done."""
        return self.root is not None and self._simulations_left == 0

    def descend(self) -> encoding.View | None:
        """Do one simulation down to a leaf.

        Returns:
            The input of the network; None if the rules decide the value of the leaf.
        """
        node = self.root
        while node is not None and not node.over:
            index = self._choose(node)
            self._path.append((node, index))
            self._line.push(node.moves[index])
            node = node.children[index]
        if node is None:
            node = self._open_leaf = self._leaf()
        if not node.over:
            return self._line.view()
        self._back_up(node)
        return None

    def expand(self, logits: np.ndarray, value: float) -> None:
        """Set the network's evaluation of the open leaf.

        Args:
            logits: Logits of the 4672 actions.
            value: Value for the side to move.
        """
        node = self._open_leaf
        legal_logits = logits[node.actions].astype(np.float64)
        weights = np.exp(legal_logits - legal_logits.max())
        node.priors = weights / weights.sum()
        node.guess_is_legal = bool((node.actions == logits.argmax()).any())
        node.value = float(value)
        self._back_up(node)

    def advance(self, move: chess.Move) -> None:
        """Make the node after a move the new root; there is none if the move was never tried. The caller makes the move."""
        root, self.root = self.root, None
        if root is not None:
            self.root = root.children[root.moves.index(move)]
        self._simulations_left = self._simulations
        self._add_noise()

    def _leaf(self) -> Node:
        """Return a new node for the current position of the line, and put it into the tree."""
        moves, actions = encoding.legal_moves(self._line.board)
        node = Node(moves, actions)
        if not moves:
            node.over, node.value = True, -1.0 if self._line.board.is_check() else 0.0
        elif self._path and self._line.draw_rule():  # at a root the caller has checked that the game is not over
            node.over = True
        if self._path:
            parent, index = self._path[-1]
            parent.children[index] = node
        return node

    def _choose(self, node: Node) -> int:
        """Return the index of the move to try: the one with the largest sum of mean value and exploration bonus (PUCT)."""
        mean = node.totals / np.maximum(node.visits, 1)
        bonus = self._exploration * node.priors * (np.sqrt(node.visits.sum() + 1) / (1 + node.visits))
        return int((mean + bonus).argmax())

    def _back_up(self, node: Node) -> None:
        """Add the value of a leaf to all moves on the path to it, and undo these moves."""
        self._open_leaf, value = None, node.value
        if not self._path:  # the node is the root of a new tree, which no simulation has reached
            self.root = node
            self._add_noise()
            return
        for parent, index in reversed(self._path):
            value = -value
            parent.visits[index] += 1
            parent.totals[index] += value
            self._line.pop()
        self._path.clear()
        self._simulations_left -= 1

    def _add_noise(self) -> None:
        """Mix noise into the priors of the root, so that each move has a chance to be tried."""
        if self.root is not None and self._noise and len(self.root.moves):
            noise = self._rng.dirichlet([self._dirichlet] * len(self.root.moves))
            self.root.priors = (1 - self._noise) * self.root.priors + self._noise * noise


def simulate_all(searches: list[Search], evaluate) -> None:
    """Do one simulation of each search, and evaluate the leaves in one call.

    Args:
        searches: Searches of different games.
        evaluate: Function that returns logits and values for views.
    """
    opened = [(search, view) for search in searches if (view := search.descend()) is not None]
    if opened:
        logits, values = evaluate([view for _, view in opened])
        for (search, _), policy, value in zip(opened, logits, values, strict=True):
            search.expand(policy, value)
