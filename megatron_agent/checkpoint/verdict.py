"""Is the result the source? Every check that does not need a model to run.

The target is read back from disk, and every parameter is compared bit by bit in both formats: the
source translated forth, and the target translated back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from megatron_agent.checkpoint import side_files
from megatron_agent.checkpoint.locate import Located
from megatron_agent.checkpoint.manifest import MANIFEST, changed_files, read_manifest
from megatron_agent.checkpoint.rules import ModelRules
from megatron_agent.checkpoint.tensors import num_not_finite, same_bits
from megatron_agent.checkpoint.weights import HFWeights, MegatronWeights, Weights


@dataclass(frozen=True)
class Check:
    """One line of the verdict.

    Attributes:
        name: what was asked.
        passed: the answer.
        detail: the number behind it, or the first findings.
        warns: passed, but somebody should read the detail.
    """

    name: str
    passed: bool
    detail: str
    warns: bool = False

    @classmethod
    def of(cls, name: str, findings: Sequence[str], otherwise: str) -> Check:
        """A check that passes when nothing was found.

        Example:
            >>> Check.of("shapes", ["a is too long", "b", "c", "d"], "all 4").detail
            'a is too long; b; c; and 1 more'
        """
        more = f"; and {len(findings) - 3} more" if len(findings) > 3 else ""
        return cls(name, not findings, "; ".join(findings[:3]) + more or otherwise)


@dataclass(frozen=True)
class Verdict:
    """All checks of one conversion."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def table(self) -> str:
        """The checks as a table for people."""
        width = max(len(check.name) for check in self.checks)
        rows = [f"{_word(check)}  {check.name:<{width}}  {check.detail}" for check in self.checks]
        return "\n".join([*rows, f"verdict: {'pass' if self.passed else 'FAIL'}"])


def _word(check: Check) -> str:
    return "FAIL" if not check.passed else "warn" if check.warns else "pass"


def compare(
    rules: ModelRules,
    source: Weights,
    target: HFWeights | MegatronWeights,
    stored_source: HFWeights | MegatronWeights,
    on_bytes: Callable[[int], object] = lambda _: None,
) -> list[Check]:
    """Compare a checkpoint with what it was made from.

    Args:
        rules: the model.
        source: the weights that should be there, with an adapter merged and the type changed.
        target: the weights that are there.
        stored_source: the source as it is stored.
        on_bytes: is told about progress.
    """
    checks = [
        _accounting("source tensors, each exactly once", stored_source, rules),
        _accounting("result tensors, each exactly once", target, rules),
        *_experts(rules, target),
    ]
    if not all(check.passed for check in checks):
        return checks  # what is missing cannot be compared
    checks += [
        *_vocabulary(rules, target),
        *_tied(rules, stored_source, target),
    ]
    forth, back, not_finite = [], [], []
    for rule in rules.params:
        expected_hf, expected = source.both(rule)
        found_hf, found = target.both(rule)
        if not same_bits(expected, found):
            num_differ = int((expected != found).sum()) if expected.shape == found.shape else "all"
            forth.append(f"{rule.name} ({num_differ} of {found.numel()} numbers)")
        if num_not_finite(found):
            not_finite.append(rule.name)
        on_bytes(found.nbytes)
        back += [
            name for name in rule.hf_shapes if not same_bits(expected_hf[name], found_hf[name])
        ]
    num_hf = len(rules.hf_shapes())
    return [
        *checks,
        Check.of("values in Megatron's format", forth, f"{len(rules.params)} equal bit by bit"),
        Check.of("values in Hugging Face's format", back, f"{num_hf} equal bit by bit"),
        Check.of("no NaN, no infinity", not_finite, f"{len(rules.params)} parameters"),
    ]


def check_files(root: Path) -> list[Check]:
    """Compare the files with the manifest, if there is one."""
    manifest = read_manifest(root)
    if manifest is None:
        return [Check("checksums", True, f"not compared: there is no {MANIFEST}", warns=True)]
    detail = f"{len(manifest['files'])} files"
    return [Check.of("checksums", changed_files(root, manifest), detail)]


def check_side_files(result: Located) -> Check:
    """Whether a result can be served: nothing loads a Hugging Face folder without its
    configuration. A server can be given another tokenizer, and a trainer all of them.
    """
    there = side_files.found(result.hf_files or result.weights)
    complete = there["config"] and there["tokenizer"]
    passed = there["config"] or result.kind == "megatron"
    return Check("files beside the weights", passed, side_files.describe(there), not complete)


def _accounting(name: str, weights: HFWeights | MegatronWeights, rules: ModelRules) -> Check:
    return Check.of(name, weights.account(rules), f"{len(weights.folder.tensors)} stored")


def _vocabulary(rules: ModelRules, target: HFWeights | MegatronWeights) -> list[Check]:
    findings, num_padding = [], 0
    if isinstance(target, MegatronWeights):
        for rule in rules.params:
            if rule.is_vocab:
                padding = target.padding(rule)
                num_padding = padding.shape[0]
                if padding.any():
                    findings.append(f"{rule.name} is padded with something else than zeros")
    detail = f"{rules.vocab_size} rows, {num_padding} of padding"
    return [Check.of("vocabulary", findings, detail)]


def _tied(rules: ModelRules, *all_weights: HFWeights | MegatronWeights) -> list[Check]:
    if rules.tied_output is None:
        return [Check("output layer", True, "of its own")]
    return [Check.of("output layer", tied_findings(rules, *all_weights), "the embedding (tied)")]


def tied_findings(rules: ModelRules, *all_weights: HFWeights | MegatronWeights) -> list[str]:
    """A stored output layer that should be the embedding and is not."""
    findings = []
    for weights in all_weights:
        if isinstance(weights, HFWeights) and rules.tied_output in weights.folder.tensors:
            (embedding,) = next(weights.hf(rule).values() for rule in rules.params if rule.is_vocab)
            if not same_bits(weights.folder.read(str(rules.tied_output)), embedding):
                findings.append(f"{rules.tied_output} differs from the embedding it is tied to")
    return findings


def _experts(rules: ModelRules, target: HFWeights | MegatronWeights) -> list[Check]:
    if not rules.num_experts:
        return []
    expected = {rule.name: rule for rule in rules.params if len(rule.lead) == 2}
    if isinstance(target, HFWeights):
        stored = set(target.folder.tensors)
        num_stored = sum(stored.issuperset(rule.hf_shapes) for rule in expected.values())
    else:
        shapes = {key: spec.shape for key, spec in target.folder.specs.items()}
        keys = {rule.key for rule in expected.values()} & shapes.keys()
        num_stored = sum(shapes[key][0] * shapes[key][1] for key in keys)
    passed = num_stored == len(expected)
    detail = f"{rules.num_experts} in a layer, {num_stored} of {len(expected)} weights of experts"
    return [Check("experts", passed, detail)]
