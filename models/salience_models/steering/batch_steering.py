"""A batch's plans at work: compiled to per-layer key biases and applied inside every attention call.

Positions here are columns of the left-padded batch: request i's own row r is column
`pads[i] + r`. A query scope is a contiguous range of rows, so each range of rows in which the
same spans are steered is one fused call.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from salience_kernels import (
    LAST_ROWS,
    MASKED_BIAS_NATS,
    TargetShareImpl,
    block_log_mass,
    key_bias_attention,
    resolve_impl,
    solve_share_bias,
    target_share_attention,
)
from salience_models.errors import BiasNotApplied, InvalidPlan
from salience_models.steering.attention import AttentionCall, fused_attention
from salience_models.steering.bias_plan import SteeringMethod
from salience_models.steering.request_steering import RequestSteering

__all__ = ["SteeringRun"]

_SHARE_RULES: dict[SteeringMethod, Literal["exact", "paper"]] = {
    SteeringMethod.TARGET_SHARE: "exact",
    SteeringMethod.TARGET_SHARE_PAPER: "paper",
}


class SteeringRun:
    """The steerer of one batch.

    Args:
        requests: One per batch row.
        pads: Left padding per row.
        with_mass: Record achieved mass of the question rows and the answer rows.
        impl: Kernel implementation by name, or "auto".

    Raises:
        ValueError: No implementation of that name does what the plans ask.
    """

    def __init__(
        self,
        requests: Sequence[RequestSteering],
        pads: Sequence[int],
        device: torch.device,
        *,
        with_mass: bool = False,
        impl: str = "auto",
    ) -> None:
        self.requests = list(requests)
        resolve_impl(impl)
        for method in (r.plan.method for r in self.requests if r.plan.is_steering):
            if method in _SHARE_RULES and impl not in set(TargetShareImpl):
                raise ValueError(
                    f"impl must be one of {', '.join(TargetShareImpl)} for {method.value}, got {impl!r}"
                )
        self.pads = list(pads)
        self.with_mass = with_mass
        self.impl = impl
        self.fed_ends = [pad + r.prompt_length for pad, r in zip(self.pads, self.requests, strict=True)]
        """Per request the column after its last real token: what lies right of it is padding."""
        self.n_blocks = max((len(r.plan.spans) for r in self.requests), default=0)
        self.hidden: Tensor | None = None
        """Columns `[batch, column]` that no later row may see: tokens taken back."""
        self._unchecked = [i for i, r in enumerate(self.requests) if r.plan.is_steering]
        width = max(self.fed_ends)
        self._block_ids = torch.zeros(len(self.requests), width, dtype=torch.int64, device=device)
        for i, (pad, request) in enumerate(zip(self.pads, self.requests, strict=True)):
            for number, span in enumerate(request.plan.spans, start=1):
                self._block_ids[i, pad + span.start : pad + span.end] = number
        self._bias_cache: dict[tuple[object, ...], Tensor] = {}
        self._answer_values: dict[int, Tensor] = {}
        """By layer the values of all answer rows, once a pass has applied and noted them."""

    def attend(self, call: AttentionCall) -> Tensor:
        """One layer: solve what must be solved, then one fused call per range of rows."""
        if call.layer in self._answer_values:
            # every row belongs to an answer, and a pass has noted that they are steered alike
            bias = self._key_bias(call, range(len(self.requests)), self._answer_values[call.layer])
            result = key_bias_attention(**call.kernel_arguments(), key_bias=bias, impl=self.impl)
            for request in self.requests:
                request.impls.add(result.impl)
            return result.out
        steered = [i for i, r in enumerate(self.requests) if r.plan.steers_layer(call.layer)]
        self._solve_shares(call, steered)
        start, end = call.query_start, call.query_end
        reached = [i for i in steered if self._first_affected(i) < end]
        is_plain = not reached and not self.with_mass and self.impl == "auto" and self.hidden is None
        plain = fused_attention(call) if is_plain else None
        if plain is not None:
            for request in self.requests:
                request.impls.add("sdpa")
            return plain
        cuts = {start, end}
        for i in reached:
            request = self.requests[i]
            cuts |= {self.pads[i] + row for row in request.plan.row_cuts(request.prompt_length)}
        if self.with_mass and start >= self._block_ids.shape[1]:
            cuts.update(range(start, end, LAST_ROWS))  # one call measures no more of the answer's rows
        edges = sorted(cut for cut in cuts if start <= cut <= end)
        outs = [self._attend_rows(call.rows(a, b), reached) for a, b in pairwise(edges)]
        return outs[0] if len(outs) == 1 else torch.cat(outs, dim=2)

    @property
    def can_hide(self) -> bool:
        """Whether `hidden` reaches every request: target share has no bias to put it in."""
        return not any(r.plan.method in _SHARE_RULES for r in self.requests)

    def check_applied(self, n_layers: int) -> None:
        """After a whole prefill, or a later pass.

        A request is due once a row that its plan steers has been fed. A block that lies outside a layer's
        window is no failure: the layer was told, and the receipt lists the pair as `unreached`.

        Raises:
            BiasNotApplied: A request asked for steering and some layer it names did not apply it.
        """
        due = [i for i in self._unchecked if self._first_affected(i) < self.fed_ends[i]]
        for i in due:
            request = self.requests[i]
            wanted = {layer for layer in range(n_layers) if request.plan.steers_layer(layer)}
            if not wanted or wanted - request.ran_layers:
                missing = sorted(wanted - request.ran_layers) or "all (none exists in this model)"
                raise BiasNotApplied(
                    f"the plan asked for steering, but these layers did not apply it: {missing}"
                )
        self._unchecked = [i for i in self._unchecked if i not in due]

    def note_reused(self, end: int, layer_windows: Sequence[int | None]) -> None:
        """Count the columns before `end`, whose keys and values a prefix that was steered alike provides."""
        for pad, request in zip(self.pads, self.requests, strict=True):
            length = request.prompt_length
            edges = sorted({0, end - pad, *(row for row in request.plan.row_cuts(length) if row < end - pad)})
            for layer, window in enumerate(layer_windows):
                if request.plan.steers_layer(layer):
                    for rows in pairwise(edges):
                        request.note_seen(layer, window, rows, request.plan.active_spans(rows[0], length))

    def _solve_shares(self, call: AttentionCall, steered: Sequence[int]) -> None:
        """Share control: find this layer's biases from the question rows' own scores, once per request."""
        todo = [
            i
            for i in steered
            if self.requests[i].plan.method is SteeringMethod.SHARE_CONTROL
            and call.layer not in self.requests[i].solved
        ]
        if not todo:
            return
        start, end = call.query_start, call.query_end
        firsts = [self.pads[i] + self.requests[i].plan.first_question_row for i in todo]
        ends = [self.pads[i] + self.requests[i].prompt_length for i in todo]
        first = min(firsts)
        if first < start or max(ends) > end:
            if all(self._first_affected(i) >= end for i in todo):
                return  # an earlier chunk that nothing steers yet
            raise InvalidPlan(
                "share_control needs its question rows and all rows it steers in one chunk of the prefill, "
                f"got a chunk of columns [{start}, {end}) with question rows [{first}, {max(ends)})"
            )
        rows = torch.arange(first, end, device=call.query.device)
        mask = torch.stack([(rows >= a) & (rows < b) for a, b in zip(firsts, ends, strict=True)])
        arguments = call.rows(first, end).kernel_arguments(todo)
        del arguments["value"]  # a mass needs scores only
        log_mass = block_log_mass(blocks=self._blocks(call)[todo], n_blocks=self.n_blocks, **arguments)
        shares = torch.zeros(len(todo), self.n_blocks, device=call.query.device)
        heads = torch.ones(len(todo), call.query.shape[1], dtype=torch.bool, device=call.query.device)
        for row, i in enumerate(todo):
            asks = self.requests[i].plan.asks
            shares[row, : len(asks)] = torch.tensor(asks)
            chosen = self.requests[i].heads_of(call.layer, heads.shape[1])
            if chosen is not None:
                heads[row] = False
                heads[row, chosen] = True
        found = solve_share_bias(log_mass, shares, row_mask=mask, head_mask=heads)
        for row, i in enumerate(todo):
            request = self.requests[i]
            request.solved[call.layer] = found.bias[row, : len(request.plan.spans)].cpu()
            for span, reached in zip(request.plan.spans, found.reached[row].tolist(), strict=False):
                if span.share and not reached:
                    request.unsolved.add((call.layer, span.name))

    def _first_affected(self, i: int) -> int:
        request = self.requests[i]
        return self.pads[i] + request.plan.first_affected_row(request.prompt_length)

    def _attend_rows(self, rows: AttentionCall, steered: Sequence[int]) -> Tensor:
        """Rows in which every request steers the same spans throughout."""
        active = {i: spans for i in steered if any(spans := self._active_spans(i, rows.query_start))}
        shared = [i for i in active if self.requests[i].plan.method in _SHARE_RULES]
        if not shared:
            return self._biased(rows, list(range(len(self.requests))), active)
        out = rows.query.new_empty(*rows.query.shape[:3], rows.value.shape[3])
        others = [i for i in range(len(self.requests)) if i not in shared]
        if others:
            out[others] = self._biased(rows, others, active)
        for i in shared:
            out[i] = self._shared(rows, i, active[i])[0]
        return out

    def _active_spans(self, i: int, column: int) -> tuple[bool, ...]:
        """Which spans request `i` steers at `column`; padding counts as the first row: one call less."""
        request = self.requests[i]
        return request.plan.active_spans(max(0, column - self.pads[i]), request.prompt_length)

    def _note_applied(self, rows: AttentionCall, i: int, active: tuple[bool, ...]) -> None:
        request, pad = self.requests[i], self.pads[i]
        request.ran_layers.add(rows.layer)
        # Padding on either side is no row of the request.
        own = (max(0, rows.query_start - pad), min(rows.query_end, self.fed_ends[i]) - pad)
        request.note_seen(rows.layer, rows.window, own, active)

    def _biased(self, rows: AttentionCall, batch: list[int], active: dict[int, tuple[bool, ...]]) -> Tensor:
        """Requests `batch` under a key bias, in one call."""
        values = self._values(rows, batch, active)
        want = self.with_mass and self._holds_receipt_rows(rows, batch)
        result = key_bias_attention(
            **rows.kernel_arguments(batch),
            key_bias=self._key_bias(rows, batch, values),
            blocks=self._blocks(rows)[batch] if want else None,
            mass="last" if want else "none",
            impl=self.impl,
        )
        for i in batch:
            self.requests[i].impls.add(result.impl)
            if i in active:
                self._note_applied(rows, i, active[i])
        is_answers = rows.query_start >= self._block_ids.shape[1] and len(batch) == len(self.requests)
        if is_answers and values is not None and not self.with_mass and min(self.fed_ends) > rows.query_start:
            self._answer_values[rows.layer] = values
        if want:
            assert result.mass is not None
            before = result.mass if values is None else _counterfactual(result.mass, values)
            for row, i in enumerate(batch):
                self._record(rows, i, result.mass[row], before[row])
        return result.out

    def _shared(self, rows: AttentionCall, i: int, active: tuple[bool, ...]) -> Tensor:
        """Request `i` under target share, `[1, head, query, head_dim]`."""
        request = self.requests[i]
        asks = request.layer_asks(rows.layer) * torch.tensor(active)
        want = self.with_mass and self._holds_receipt_rows(rows, [i])
        arguments = rows.kernel_arguments([i])
        result = target_share_attention(
            **arguments,
            blocks=self._blocks(rows)[[i]],
            shares=asks[None].to(rows.query.device),
            rule=_SHARE_RULES[request.plan.method],
            only_raise=request.plan.only_raise,
            mass="last" if want else "none",
            impl=self.impl,
        )
        request.impls.add(f"target_share:{result.impl}")
        self._note_applied(rows, i, active)
        out, mass, before = result.out, result.mass, result.mass_before
        chosen = request.heads_of(rows.layer, rows.query.shape[1])
        if chosen is not None:
            plain = key_bias_attention(**arguments, impl=self.impl)
            request.impls.add(plain.impl)
            out = _only_heads(chosen, out, plain.out)
        if want:
            assert mass is not None
            assert before is not None
            mass = mass if chosen is None else _only_heads(chosen, mass, before)
            self._record(rows, i, mass[0], before[0])
        return out

    def _values(
        self, call: AttentionCall, batch: list[int], active: dict[int, tuple[bool, ...]]
    ) -> Tensor | None:
        """Nats per request and block `[batch, 1 | head, block + 1]` (0 = rest), on the CPU.

        None where nothing is steered.
        """
        if not any(i in active for i in batch):
            return None
        n_heads = call.query.shape[1]
        per_head = any(i in active and self.requests[i].plan.heads is not None for i in batch)
        values = torch.zeros(len(batch), n_heads if per_head else 1, self.n_blocks + 1)
        for row, i in enumerate(batch):
            if i in active:
                asks = self.requests[i].layer_asks(call.layer) * torch.tensor(active[i])
                chosen = self.requests[i].heads_of(call.layer, n_heads)
                heads = slice(None) if chosen is None else chosen
                values[row, heads, 1 : len(asks) + 1] = asks
        return values

    def _key_bias(self, call: AttentionCall, batch: Sequence[int], values: Tensor | None) -> Tensor | None:
        """Nats per key `[batch, 1 | head, key]` of this call's keys; equal across layers where values are.

        None where nothing is steered or hidden.
        """
        if values is None:
            if self.hidden is None:
                return None
            values = torch.zeros(len(batch), 1, self.n_blocks + 1)
        where = (call.key.device, call.key_offset, call.key.shape[2])
        cached = (*where, tuple(batch), values.shape, values.numpy().tobytes())
        if cached not in self._bias_cache:
            if len(self._bias_cache) >= 16:
                self._bias_cache.clear()
            ids = self._blocks(call)[list(batch)].long()[:, None].expand(-1, values.shape[1], -1)
            bias = values.to(ids.device).gather(2, ids)
            if self.hidden is not None:
                bias.masked_fill_(self.hidden[list(batch), None].to(ids.device), MASKED_BIAS_NATS)
            self._bias_cache[cached] = bias
        return self._bias_cache[cached]

    def _blocks(self, call: AttentionCall) -> Tensor:
        """Block number of each of this call's keys, int16 `[batch, key]`; 0 = rest and answer tokens.

        On the layer's own device: a device map spreads layers over several.
        """
        offset, count = call.key_offset, call.key.shape[2]
        ids = self._block_ids[:, offset : offset + count].to(torch.int16)
        return F.pad(ids, (0, count - ids.shape[1])).to(call.key.device)

    def _receipt_start(self, i: int) -> int:
        """First measured column: of the question rows the last 64, however the prefill was cut."""
        request = self.requests[i]
        first = max(request.plan.first_question_row, request.prompt_length - LAST_ROWS)
        return self.pads[i] + first

    def _holds_receipt_rows(self, rows: AttentionCall, batch: Sequence[int]) -> bool:
        return self.n_blocks > 0 and any(self._receipt_start(i) < rows.query_end for i in batch)

    def _record(self, rows: AttentionCall, i: int, mass: Tensor, before: Tensor) -> None:
        """Add request `i`'s mass `[head, row, block + 1]` of the last rows of this range to its ledger.

        A window layer whose keys hold none of the later blocks returns fewer columns: the rest are zero.
        """
        request = self.requests[i]
        width = len(request.plan.spans) + 1
        mass, before = (F.pad(m, (0, max(0, width - m.shape[-1])))[..., :width] for m in (mass, before))
        first = rows.query_end - mass.shape[1]
        columns = torch.arange(first, rows.query_end)
        keep = (columns >= self._receipt_start(i)) & (columns < self.fed_ends[i])
        if not keep.any():
            return
        is_answer = rows.query_start >= self.pads[i] + request.prompt_length
        request.ledger.add(rows.layer, is_answer, mass[:, keep].cpu(), before[:, keep].cpu())


def _only_heads(chosen: list[int], steered: Tensor, plain: Tensor) -> Tensor:
    """`plain` `[batch, head, …]` with the heads `chosen` taken from `steered`."""
    mixed = plain.clone()
    mixed[:, chosen] = steered[:, chosen]
    return mixed


def _counterfactual(mass: Tensor, values: Tensor) -> Tensor:
    """Mass without the bias, `p ∝ p' · exp(−b)` per row and head, the rest (sink included) at b = 0."""
    undone = mass * torch.exp(-values).to(mass.device)[:, :, None, : mass.shape[-1]]
    return undone / undone.sum(-1, keepdim=True).clamp(min=1e-30)
