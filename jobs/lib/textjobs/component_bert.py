"""BERT for masked-language-model training whose embedding includes the components of Chinese characters.

The embedding of a token, as in BERT, is fused with the pooled embeddings of its components. Their ids (`components.py`) are
part of the model: a buffer of shape (vocabulary, places), saved and loaded with the weights. Characters with a common
component share what is learned about it, which helps most for rare characters.

    pooled = sum_i a_i C[i]        a: equal weights, or a softmax over a learned score of each component
    gate:    word + sigmoid(G [word; pooled]) * pooled
    concat:  word + W [word; pooled]

Both start near plain BERT, so its weights (`bert-base-chinese`) can be trained further. The output layer is tied to the
token's own embeddings. Importing this module imports torch and transformers.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy import typing as npt
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    initialization,
    modeling_outputs,
)
from transformers.models.bert import modeling_bert

from textjobs import components
from trialplane import errors

POOLINGS = ("mean", "attention")
FUSIONS = ("gate", "concat")


class ComponentBertConfig(BertConfig):  # type: ignore[misc]  # transformers has no types
    """The settings of BERT, and those of the components.

    Args:
        component_count: Number of component ids, with that of the empty place.
        component_places: Maximum number of components of a token.
        component_pooling: `mean` or `attention`.
        component_fusion: `gate` or `concat`.
        **others: Settings of BERT.

    Raises:
        InputError: There is no such pooling or fusion.
    """

    model_type = "component-bert"

    def __init__(
        self,
        component_count: int = 1,
        component_places: int = 1,
        component_pooling: str = "attention",
        component_fusion: str = "gate",
        **others: Any,
    ) -> None:
        if component_pooling not in POOLINGS or component_fusion not in FUSIONS:
            raise errors.InputError(
                f"component_pooling is {component_pooling!r} and component_fusion {component_fusion!r}; "
                f"there are {', '.join(POOLINGS)} and {', '.join(FUSIONS)}"
            )
        self.component_count = component_count
        self.component_places = component_places
        self.component_pooling = component_pooling
        self.component_fusion = component_fusion
        super().__init__(**others)


class ComponentEmbeddings(modeling_bert.BertEmbeddings):  # type: ignore[misc]
    """BERT's embeddings, in which that of each token is fused with the pooled ones of its components."""

    def __init__(self, config: ComponentBertConfig) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.component_embeddings = nn.Embedding(config.component_count, size, padding_idx=components.EMPTY)
        attention = config.component_pooling == "attention"
        self.component_scores = nn.Parameter(torch.zeros(config.component_count)) if attention else None
        self.gated = config.component_fusion == "gate"
        self.fusion = nn.Linear(2 * size, size)
        self.register_buffer(
            "component_ids", torch.zeros(config.vocab_size, config.component_places, dtype=torch.int32), persistent=True
        )

    def forward(self, input_ids: torch.Tensor | None = None, inputs_embeds: torch.Tensor | None = None, **rest: Any) -> Any:
        """Return states of shape (batch, tokens, hidden). `inputs_embeds` are used unchanged: they do not name tokens."""
        if inputs_embeds is None:
            word_states = self.word_embeddings(input_ids)
            pooled = self.pool(self.component_ids[input_ids].flatten(0, 1)).view_as(word_states)
            fused = self.fusion(torch.cat([word_states, pooled], dim=-1))
            inputs_embeds = word_states + (torch.sigmoid(fused) * pooled if self.gated else fused)
        return super().forward(inputs_embeds=inputs_embeds, **rest)

    def pool(self, ids: torch.Tensor) -> torch.Tensor:
        """Return pooled embeddings of shape (tokens, hidden) for component ids of shape (tokens, places).

        They are zeros without components. embedding_bag needs no tensor of shape (tokens, places, hidden), which would be
        the largest of the model.
        """
        table = self.component_embeddings.weight
        if self.component_scores is None:
            return nn.functional.embedding_bag(ids, table, mode="mean", padding_idx=components.EMPTY)
        scores = nn.functional.embedding(ids, self.component_scores.unsqueeze(-1)).squeeze(-1).float()
        # Not -inf, which would give NaN for a token without components. Its weights multiply the padding row of zeros.
        weights = scores.masked_fill(ids == components.EMPTY, torch.finfo(scores.dtype).min).softmax(-1).to(table.dtype)
        return nn.functional.embedding_bag(ids, table, mode="sum", per_sample_weights=weights, padding_idx=components.EMPTY)


class ComponentBertModel(BertModel):  # type: ignore[misc]
    """BERT's encoder with `ComponentEmbeddings`."""

    config_class = ComponentBertConfig

    def __init__(self, config: ComponentBertConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config, add_pooling_layer=add_pooling_layer)
        self.embeddings = ComponentEmbeddings(config)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Set the initial weights of a module, as transformers requires."""
        super()._init_weights(module)
        if isinstance(module, ComponentEmbeddings):
            with torch.no_grad():
                initialization.zeros_(module.component_ids)
                if module.component_scores is not None:
                    initialization.zeros_(module.component_scores)  # at first, all components have the same weight


class ComponentBertForMaskedLM(BertForMaskedLM):  # type: ignore[misc]
    """The encoder with the head for masked-language-model training."""

    config_class = ComponentBertConfig

    def __init__(self, config: ComponentBertConfig) -> None:
        super().__init__(config)
        self.bert = ComponentBertModel(config, add_pooling_layer=False)
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        *,
        positions: torch.Tensor | None = None,
        **rest: Any,
    ) -> Any:
        """Return BERT's output, or with `positions` only the logits of these.

        Args:
            input_ids: Ids of shape (batch, tokens).
            attention_mask: Mask of shape (batch, tokens).
            positions: Positions of shape (chosen,), counted through the whole batch: row * tokens + column. They save work:
                the output layer is as large as two layers of the encoder, and seven of eight tokens have no loss.
            **rest: Further arguments of BERT.

        Returns:
            MaskedLMOutput with logits of shape (batch, tokens, vocabulary), or (chosen, vocabulary).
        """
        if positions is None:
            return super().forward(input_ids, attention_mask=attention_mask, **rest)
        states = self.bert(input_ids, attention_mask=attention_mask, return_dict=True, **rest).last_hidden_state
        return modeling_outputs.MaskedLMOutput(logits=self.cls(states.flatten(0, 1)[positions]))

    def set_components(self, ids: npt.NDArray[Any]) -> None:
        """Set the component ids of the vocabulary.

        Args:
            ids: Ids of shape (vocabulary, places).

        Raises:
            ValueError: The shape is another, or the embedding lacks an id.
        """
        buffer = self.bert.embeddings.component_ids
        if ids.shape != tuple(buffer.shape) or not 0 <= ids.min() <= ids.max() < self.config.component_count:
            raise ValueError(
                f"component ids of shape {ids.shape} from {ids.min()} to {ids.max()} do not fit a model for "
                f"{tuple(buffer.shape)} with {self.config.component_count} ids"
            )
        buffer.copy_(torch.from_numpy(ids))


# For transformers' Auto classes, after an import of this module.
AutoConfig.register(ComponentBertConfig.model_type, ComponentBertConfig, exist_ok=True)
AutoModel.register(ComponentBertConfig, ComponentBertModel, exist_ok=True)
AutoModelForMaskedLM.register(ComponentBertConfig, ComponentBertForMaskedLM, exist_ok=True)
