"""`LanguageModel`: prefill and decode a batch of requests, each steered by its own plan."""

import inspect
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from salience_models.constraints.vocabulary import Vocabulary, read_vocabulary
from salience_models.decoding.cache import CacheKind, GrowingLayer, RowCache, build_cache, join_rows
from salience_models.decoding.decode_state import DecodeState, Request, group_by_length
from salience_models.decoding.rope_regime import in_regimes, rope_regime, watch_rope
from salience_models.errors import InvalidPlan, NoTokenizer, PromptTooLong
from salience_models.steering.attention import ATTENTION_NAME, register_attention, steered_by
from salience_models.steering.batch_steering import SteeringRun
from salience_models.steering.bias_plan import Phase, SteeringMethod
from salience_models.steering.receipts import Receipt
from salience_models.steering.request_steering import RequestSteering
from salience_models.weights.architecture import check_config, check_implementation, check_model, text_config
from salience_models.weights.loader import load_model
from salience_models.weights.model_info import ModelInfo, info_from_model

__all__ = ["LanguageModel"]

_CPU_PASS_TOKENS = 32
_PASS_TOKENS = 512
"""What one more pass of a prefill is worth in tokens: on a CPU little, as the arithmetic takes the time; on
an accelerator what it computes while a pass's kernels are launched (a guess: no device was measured)."""


class LanguageModel:
    """A loaded model whose attention goes through the seam.

    Use `LanguageModel.load(source)`; the constructor takes a transformers model of your own
    (tests use tiny random ones) and switches it to the "salience" attention. It raises
    `UnsupportedAttention` or `UnknownArchitecture` where that attention cannot be steered.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        info: ModelInfo | None = None,
    ) -> None:
        register_attention()
        check_config(model.config)
        check_model(model)
        model.set_attn_implementation(ATTENTION_NAME)
        check_implementation(model, ATTENTION_NAME)
        self.model = model.eval()
        self._tokenizer = tokenizer
        self.info = info_from_model(model, tokenizer) if info is None else info
        self._rope_thresholds = watch_rope(model)
        parameters = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"

    @classmethod
    def load(
        cls,
        source: str,
        *,
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
        device_map: str | dict[str, int | str] | None = None,
        quantization: str | None = None,
        cache_dir: Path | None = None,
    ) -> "LanguageModel":
        """Load a bundled, hub, local or GGUF model; see `loader.load_model` for sources and errors."""
        register_attention()
        loaded = load_model(
            source,
            revision=revision,
            device=device,
            dtype=dtype,
            device_map=device_map,
            quantization=quantization,
            cache_dir=cache_dir,
            attn_implementation=ATTENTION_NAME,
        )
        return cls(loaded.model, loaded.tokenizer, loaded.info)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """What turns text into the model's tokens and back.

        Raises:
            NoTokenizer: The model was given without one.
        """
        if self._tokenizer is None:
            raise NoTokenizer(
                f"tokenizer must be given for what needs text, got {self.info.architecture} without one: "
                "LanguageModel(model, tokenizer)"
            )
        return self._tokenizer

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def n_vocab(self) -> int:
        """Width of the logits, which the tokenizer may not fill."""
        head = self.model.get_output_embeddings()
        return int(getattr(head, "out_features", 0)) or text_config(self.model.config).vocab_size

    @property
    def vocabulary(self) -> Vocabulary:
        """What constraints are compiled for.

        Raises:
            ModelsError: There is no tokenizer, or its text is not the concatenation of its tokens.
        """
        return read_vocabulary(self.tokenizer, n_vocab=self.n_vocab, eos_token_ids=self.info.eos_token_ids)

    @torch.inference_mode()
    def prefill(
        self,
        requests: Sequence[Request],
        *,
        cache: CacheKind | str = CacheKind.GROWING,
        new_tokens: int | Sequence[int] = 0,
        chunk_tokens: int | None = None,
        with_mass: bool = False,
        impl: str = "auto",
        prefix: RowCache | Sequence[RowCache] | None = None,
    ) -> DecodeState:
        """Run a batch of prompts, those of similar length together, and left-pad them to one length.

        Args:
            requests: Prompts and plans, one per batch row.
            cache: Which cache to fill.
            new_tokens: Answer tokens to leave room for, one number or one per request (static caches hold
                no more).
            chunk_tokens: Split the prefill into passes of at most this many columns.
            with_mass: Record receipts.
            impl: Kernel implementation, "auto" or a name; what ran is in the receipt.
            prefix: Another request's cache, one for all rows or one per row; whatever tokens, steering and
                RoPE regime agree on is not computed again.

        Raises:
            PromptTooLong: A prompt plus `new_tokens` is over the context window.
            InvalidPlan: A plan names tokens, layers or heads that do not exist, or steers no row.
            BiasNotApplied: A plan asked for steering that some layer did not apply.
            ValueError: Among others, `impl` names nothing that does what a plan asks.
        """
        kind = CacheKind(cache)
        if not requests:
            raise ValueError("requests must hold at least one request, got none")
        if chunk_tokens is not None and chunk_tokens < 1:
            raise ValueError(f"chunk_tokens must be at least 1, got {chunk_tokens}")
        if prefix is not None and kind is not CacheKind.GROWING:
            raise ValueError(f"cache must be 'growing' to reuse a prefix, got {kind.value!r}")
        room = [new_tokens] * len(requests) if isinstance(new_tokens, int) else list(new_tokens)
        rows: list[RowCache | None]
        rows = [prefix] * len(requests) if prefix is None or isinstance(prefix, RowCache) else [*prefix]
        _check_count("new_tokens", room, len(requests))
        _check_count("prefix", rows, len(requests))
        self._check(requests, room)
        for row, (request, new) in enumerate(zip(requests, room, strict=True)):
            length = len(request.token_ids)
            if kind is not CacheKind.GROWING and self._regime(length) != self._regime(length + new):
                raise ValueError(self._one_regime_message(row))
        together = partial(self._prefill_together, chunk_tokens=chunk_tokens, with_mass=with_mass, impl=impl)
        groups = [list(range(len(requests)))]
        if kind is CacheKind.GROWING:
            reused = [self._reusable(row, r, with_mass) for row, r in zip(rows, requests, strict=True)]
            worth = _CPU_PASS_TOKENS if self.device.type == "cpu" else _PASS_TOKENS
            left = [len(r.token_ids) - n for r, n in zip(requests, reused, strict=True)]
            # Beside one that reuses nothing, no other's prefix would fit.
            parts = [[i for i, n in enumerate(reused) if bool(n) is reuses] for reuses in (True, False)]
            groups = [
                [part[at] for at in group]
                for part in parts
                for group in group_by_length([left[i] for i in part], worth)
            ]
        if len(groups) == 1:
            return together(requests, kind, max(room), rows)
        states = [together([requests[i] for i in g], kind, 0, [rows[i] for i in g]) for g in groups]
        places = [i for group in groups for i in group]
        order = sorted(range(len(places)), key=places.__getitem__)  # back to the order of the requests
        caches = [row for state in states for row in state.rows()]
        steerings = [steering for state in states for steering in state.requests]
        joined = self.resume(
            [caches[at] for at in order],
            [steerings[at] for at in order],
            new_tokens=max(room),
            like=states[0].run,
        )
        joined.logits = torch.cat([state.logits for state in states])[order]
        return joined

    def _regime(self, length: int) -> int:
        return rope_regime(length, self._rope_thresholds)

    def _one_regime_message(self, row: int) -> str:
        lengths = ", ".join(map(str, self._rope_thresholds))
        return (
            f"cache must be 'growing' for a request to pass {lengths} tokens, where this model's RoPE "
            f"changes, got another and request {row} passing them"
        )

    def _prefill_together(
        self,
        requests: Sequence[Request],
        kind: CacheKind,
        room: int,
        rows: Sequence[RowCache | None],
        *,
        chunk_tokens: int | None,
        with_mass: bool,
        impl: str,
        regimes: Sequence[int] | None = None,
    ) -> DecodeState:
        lengths = [len(r.token_ids) for r in requests]
        regimes = [self._regime(length) for length in lengths] if regimes is None else regimes
        width = max(lengths)
        pads = [width - length for length in lengths]
        steerings = [RequestSteering(r.plan, len(r.token_ids)) for r in requests]
        run = SteeringRun(steerings, pads, self.device, with_mass=with_mass, impl=impl)
        filled, start = build_cache(kind, self.model.config, width + room), 0
        prefixes = [row for row in rows if row is not None]
        reusable = [self._reusable(row, r, with_mass) for row, r in zip(rows, requests, strict=True)]
        common = min(pad + count for pad, count in zip(pads, reusable, strict=True))
        if len(prefixes) == len(rows) and common > max(pads):
            start = common
            filled = join_rows(prefixes, [start - pad for pad in pads], pads, width + room)
            run.note_reused(start, self.info.layer_windows)
        tokens = [list(r.token_ids) for r in requests]
        capacity = width + room if kind is CacheKind.STATIC else None
        state = DecodeState(
            steerings, tokens, pads, filled, run, start, torch.empty(0), list(regimes), capacity
        )
        ids = torch.tensor([[0] * pad + row for pad, row in zip(pads, tokens, strict=True)])
        ends = [width]
        if chunk_tokens is not None:
            # Share control solves on a prompt's last rows and steers by that: those stay in one pass.
            firsts = (steering.plan.one_pass_start(n) for steering, n in zip(steerings, lengths, strict=True))
            last = min(pad + first for pad, first in zip(pads, firsts, strict=True))
            ends = [*range(start + chunk_tokens, last, chunk_tokens), *ends]
            ends = sorted({*ends, last}) if start < last < width else ends
        for end in ends:
            state.logits = self._forward(state, ids[:, state.columns : end], keep=1)[:, -1]
        run.check_applied(self.info.n_layers)
        return state

    @torch.inference_mode()
    def decode(self, state: DecodeState, token_ids: Sequence[int | None]) -> Tensor:
        """Feed one token per request; the logits after it, `[batch, vocab]`.

        None feeds padding to a request that has finished, whose logits then mean nothing.

        Raises:
            PromptTooLong: A request that has not finished would pass the context window.
            ValueError: After an `extend` by different lengths, or a static cache is full.
            BiasNotApplied: A plan for answer rows that some layer did not apply.
        """
        counts = [None if token is None else 1 for token in token_ids]
        self._check_room(state, counts, 1)
        self._enter_regimes(state, counts)
        fed = [0 if token is None else token for token in token_ids]
        for ids, token in zip(state.token_ids, fed, strict=True):
            ids.append(token)
        state.logits = self._forward(state, torch.tensor(fed)[:, None], keep=1)[:, -1]
        state.run.check_applied(self.info.n_layers)
        return state.logits

    @torch.inference_mode()
    def extend(self, state: DecodeState, continuations: Sequence[Sequence[int]]) -> Tensor:
        """Feed several tokens per request at once; the logits after each, `[batch, query, vocab]`.

        Shorter continuations are padded on the right: `trim`, or take `state.rows()` afterwards, whose
        lengths leave that padding out; `decode` may follow at once only where all have one length. Raises
        as `decode`.
        """
        lengths = [len(c) for c in continuations]
        longest = max(lengths, default=0)
        self._check_room(state, lengths, longest)
        self._enter_regimes(state, lengths)
        # A request may pass a threshold of the RoPE among these tokens: what follows it is fed apart.
        firsts = [
            next((n for n in range(1, length) if self._regime(len(ids) + n + 1) != regime), length)
            for ids, length, regime in zip(state.token_ids, lengths, state.regimes, strict=True)
        ]
        if firsts != lengths:
            logits = self._feed(state, [c[:n] for c, n in zip(continuations, firsts, strict=True)])
            resumed = self.resume(state.rows(), state.requests, new_tokens=longest, like=state.run)
            vars(state).update(vars(resumed))
            rest = self.extend(state, [c[n:] for c, n in zip(continuations, firsts, strict=True)])
            logits = F.pad(logits, (0, 0, 0, longest - logits.shape[1]))
            for row, (n, length) in enumerate(zip(firsts, lengths, strict=True)):
                logits[row, n:length] = rest[row, : length - n]
            return logits
        logits = self._feed(state, continuations)
        state.logits = logits[:, -1] if min(lengths) == longest else torch.empty(0)
        return logits

    def _feed(self, state: DecodeState, continuations: Sequence[Sequence[int]]) -> Tensor:
        """Feed tokens to requests that stay in their regimes, shorter ones padded on the right."""
        longest = max(map(len, continuations))
        ids = torch.zeros(len(continuations), longest, dtype=torch.int64)
        for row, tokens in enumerate(continuations):
            ids[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
            state.token_ids[row].extend(tokens)
        logits = self._forward(state, ids, keep=longest)
        state.run.check_applied(self.info.n_layers)
        return logits

    def _enter_regimes(self, state: DecodeState, counts: Sequence[int | None]) -> None:
        """Compute requests anew whose next token lies in another RoPE regime than their keys.

        A longer (or, after tokens were taken back, a shorter) sequence is rotated by other frequencies from
        its first token on, so nothing of the old cache is right. transformers' Phi-3 does the same when
        `generate` passes the threshold; its other models go on with keys of both regimes.

        Raises:
            ValueError: The cache is one that rows can't be put back into.
        """
        moved = [
            (row, regime)
            for row, (ids, count) in enumerate(zip(state.token_ids, counts, strict=True))
            if count and (regime := self._regime(len(ids) + 1)) != state.regimes[row]
        ]
        if not moved:
            return
        if not all(isinstance(layer, GrowingLayer) for layer in state.cache.layers):
            raise ValueError(self._one_regime_message(moved[0][0]))
        rows, steerings = state.rows(), list(state.requests)
        for row, regime in moved:
            steering, ids = state.requests[row], state.token_ids[row]
            again = self._prefill_together(
                [Request(tuple(ids[: steering.prompt_length]), steering.plan)],
                CacheKind.GROWING,
                len(ids),
                [None],
                chunk_tokens=None,
                with_mass=state.run.with_mass,
                impl=state.run.impl,
                regimes=[regime],
            )
            if len(ids) > steering.prompt_length:
                self._feed(again, [ids[steering.prompt_length :]])
            (rows[row],), steerings[row] = again.rows(), again.requests[0]
        resumed = self.resume(rows, steerings, new_tokens=state.columns, like=state.run)
        vars(state).update(vars(resumed))

    def can_trim(self, state: DecodeState) -> bool:
        """Whether columns can be hidden: no window counts them, a bias reaches them, no mass was recorded."""
        is_growing = all(isinstance(layer, GrowingLayer) for layer in state.cache.layers)
        is_recorded = state.run.with_mass  # masses of what is taken back could not be taken out again
        return is_growing and state.run.can_hide and not is_recorded and not any(self.info.layer_windows)

    def trim(self, state: DecodeState, lengths: Sequence[int]) -> None:
        """Take back all but the first `lengths[i]` tokens of each request, in place; the prompt stays.

        Raises:
            ValueError: `can_trim` says no, or a length is out of range.
        """
        if not self.can_trim(state):
            raise ValueError(
                "tokens must be taken back by state.rows() and resume under target share, windows, with_mass "
                "or another cache than 'growing', got a trim"
            )
        _check_count("lengths", lengths, len(state.token_ids))
        for row, (request, ids, length) in enumerate(
            zip(state.requests, state.token_ids, lengths, strict=True)
        ):
            if not request.prompt_length <= length <= len(ids):
                raise ValueError(
                    f"lengths[{row}] must lie in [{request.prompt_length}, {len(ids)}], got {length}"
                )
        state.trim(lengths)

    @torch.inference_mode()
    def resume(
        self,
        rows: Sequence[RowCache],
        steerings: Sequence[RequestSteering],
        *,
        new_tokens: int,
        like: SteeringRun,
    ) -> DecodeState:
        """A fresh batch out of rows of others, to go on decoding; feeds nothing.

        `logits` are empty until the next `decode`. The others may go on too: their receipts and these part.
        """
        lengths = [len(row.token_ids) for row in rows]
        width = max(lengths)
        pads = [width - length for length in lengths]
        cache = join_rows(rows, lengths, pads, width + new_tokens)
        branches = [steering.branch() for steering in steerings]
        run = SteeringRun(branches, pads, self.device, with_mass=like.with_mass, impl=like.impl)
        tokens = [list(row.token_ids) for row in rows]
        regimes = [row.regime for row in rows]
        return DecodeState(branches, tokens, pads, cache, run, width, torch.empty(0), regimes)

    def receipt(self, state: DecodeState, row: int) -> Receipt:
        """What steering did so far in request `row`; masses need `with_mass`."""
        request = state.requests[row]
        plan, n_layers = request.plan, self.info.n_layers
        bias = torch.zeros(n_layers, len(plan.spans), dtype=torch.float64)
        for layer in request.applied_layers:
            if plan.method in (SteeringMethod.LOGIT_BIAS, SteeringMethod.SHARE_CONTROL):
                bias[layer] = request.layer_asks(layer).double()
            else:
                bias[layer] = torch.tensor([float("nan") if ask else 0.0 for ask in plan.asks])
        return Receipt(
            blocks=tuple(span.name for span in plan.spans),
            method=plan.method.value if plan.is_steering else "none",
            plan_fingerprint=plan.fingerprint(),
            layers=tuple(sorted(request.applied_layers)),
            impls=tuple(sorted(request.impls)),
            bias_nats=bias.numpy(),
            question=request.ledger.table(is_answer=False),
            answer=request.ledger.table(is_answer=True),
            unreached=tuple(sorted(request.unreached)),
        )

    def _forward(self, state: DecodeState, ids: Tensor, keep: int) -> Tensor:
        """One pass over the next columns; the logits of the last `keep`, `[batch, query, vocab]`."""
        end = state.columns + ids.shape[1]
        columns = torch.arange(end)
        pads = torch.tensor(state.pads)[:, None]
        mask = (columns >= pads).long()
        before = pads + torch.tensor(state.n_hidden)[:, None]
        # A finished request that waits for the others may pass the window's end; nobody reads its rows.
        positions = (columns[state.columns :] - before).clamp(0, self.info.context_window - 1)
        state.run.fed_ends = [
            n + len(ids) for n, ids in zip(before[:, 0].tolist(), state.token_ids, strict=True)
        ]
        if state.hidden is not None:
            state.run.hidden = state.hidden = F.pad(state.hidden, (0, ids.shape[1]))
        # As a tensor: given a number, Gemma 4 cuts the mask that its later layers get, which is our card.
        # On the CPU: it indexes the last layer's output, which a device map may put anywhere.
        kept = torch.arange(-keep, 0)
        arguments = {self._cache_argument: state.cache, "use_cache": True, "logits_to_keep": kept}
        with steered_by(state.run), in_regimes(state.regimes):
            output = self.model(
                input_ids=ids.to(self.device),
                attention_mask=mask.to(self.device),
                position_ids=positions.to(self.device),
                **arguments,
            )
        state.columns = end
        return output.logits

    def _check_room(self, state: DecodeState, lengths: Sequence[int | None], n_columns: int) -> None:
        """Refuse to feed `lengths[i]` tokens (None: padding after the end) per request in `n_columns`."""
        window, end = self.info.context_window, state.columns + n_columns
        _check_count("tokens to feed", lengths, len(state.token_ids))
        if n_columns < 1:
            raise ValueError("tokens to feed must be at least one, got none")
        if state.capacity is not None and end > state.capacity:
            raise ValueError(
                f"new_tokens of a prefill with a static cache must leave room for all that follows: "
                f"it holds {state.capacity} columns, got {end}"
            )
        ends = [pad + n for pad, n in zip(state.pads, state.n_hidden, strict=True)]
        for row, (first, ids, length) in enumerate(zip(ends, state.token_ids, lengths, strict=True)):
            if first + len(ids) != state.columns:
                raise ValueError(
                    f"requests must all end at column {state.columns} to go on, got request {row} ending at "
                    f"{first + len(ids)} (after an uneven extend, trim it or resume from state.rows())"
                )
            if length and len(ids) + length > window:
                raise PromptTooLong(
                    f"request {row} must stay within the context window of {window}, "
                    f"got {len(ids) + length} tokens"
                )

    def _reusable(self, prefix: RowCache | None, request: Request, with_mass: bool) -> int:
        """Tokens of `request` that `prefix` serves: no question rows where their mass is measured."""
        if prefix is None:
            return 0
        count = prefix.reusable(request.token_ids, request.plan, self._regime(len(request.token_ids)))
        return min(count, request.plan.first_question_row) if with_mass and request.plan.spans else count

    def _check(self, requests: Sequence[Request], new_tokens: Sequence[int]) -> None:
        """Refuse what a prefill cannot do, by the field that says so."""
        n_layers, n_heads, window = self.info.n_layers, self.info.n_heads, self.info.context_window
        embedding: Any = self.model.get_input_embeddings()
        n_embeddings = len(embedding.weight)
        for row, (request, room) in enumerate(zip(requests, new_tokens, strict=True)):
            plan, length = request.plan, len(request.token_ids)
            if not length:
                raise ValueError(f"requests[{row}].token_ids must hold at least one token, got none")
            if not 0 <= min(request.token_ids) <= max(request.token_ids) < n_embeddings:
                wrong = sorted({token for token in request.token_ids if not 0 <= token < n_embeddings})
                raise ValueError(
                    f"requests[{row}].token_ids must lie in [0, {n_embeddings}), got {wrong[:5]}"
                )
            if room < 0:
                raise ValueError(f"new_tokens of request {row} must be at least 0, got {room}")
            over = length + room - window
            if over > 0:
                raise PromptTooLong(
                    f"the prompt has {length} tokens and {room} more are asked for, which is {over} over "
                    f"the context window of {window}"
                )
            if plan.spans and max(plan.spans[-1].end, plan.first_question_row) > length:
                raise InvalidPlan(
                    f"spans and question_start must lie within the prompt's {length} tokens, got "
                    f"{plan.spans[-1].name!r} ending at {plan.spans[-1].end} and question_start "
                    f"{plan.first_question_row}"
                )
            layers = [*(plan.layers or ()), *(layer for layer, _ in plan.heads or ())]
            heads = [head for _, head in plan.heads or ()]
            for name, numbers, limit in (("layers", layers, n_layers), ("heads", heads, n_heads)):
                if any(not 0 <= n < limit for n in numbers):
                    raise InvalidPlan(f"{name} must lie in [0, {limit}), got {sorted(numbers)}")
            if not plan.is_steering:
                continue
            if not any(plan.steers_layer(layer) for layer in range(n_layers)):
                raise InvalidPlan(
                    "heads must include a head of a steered layer, got none in the plan's layers"
                )
            if plan.phase is Phase.PREFILL and plan.first_affected_row(length) >= length:
                raise InvalidPlan(f"a plan for the prefill must steer one of its {length} rows, got none")
            if plan.method is SteeringMethod.SHARE_CONTROL and plan.first_question_row >= length:
                raise InvalidPlan(
                    f"share_control needs rows after the blocks, got a prompt that ends at {length}"
                )


def _check_count(name: str, values: Sequence[object], n_requests: int) -> None:
    if len(values) != n_requests:
        raise ValueError(f"{name} must be one per request ({n_requests}), got {len(values)}")
