"""The end of a run's story, in a few lines on the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from chimera.rundir.directory import RunDir


def report(record: dict[str, Any], directory: RunDir, console: Console) -> None:
    """The end of the story, in a few lines."""
    saves, skipped = record["checkpoints"], record["skipped"]
    left_out = (
        f", {skipped['not_finite']} steps left out as not finite, {skipped['scaler']} by the scaler"
        if any(skipped.values())
        else ""
    )
    console.print(
        f"{headline(record['metrics'])}\n"
        f"{record['tokens_per_second']:,.0f} tokens/s, peak memory"
        f" {record['peak_memory_gb']:.2f} GB, {record['wall_seconds']:.0f} s in all\n"
        f"{saves['saves']} checkpoint{'s' * (saves['saves'] != 1)} in {saves['seconds']:.2f} s,"
        f" the longest {saves['longest']:.2f} s{left_out}\n"
        f"{directory.path}",
        highlight=False,
        soft_wrap=True,
    )


def headline(found: dict[str, float]) -> str:
    """What came out of a run: perplexities beside that of word frequencies, or all its metrics."""
    if "val/unigram_perplexity" not in found:
        return "\n".join(
            ", ".join(f"{k} {v:.4f}" for k, v in found.items() if k.startswith(stage))
            for stage in ("val/", "test/")
            if any(k.startswith(stage) for k in found)
        )
    unigram = found["val/unigram_perplexity"]
    return (
        f"validation perplexity {found['val/perplexity']:.1f}, of a unigram model on the same"
        f" tokens {unigram:.1f}: {unigram / found['val/perplexity']:.2f} times lower\n"
        f"test perplexity {found['test/perplexity']:.1f}, accuracy {found['test/accuracy']:.1%}"
    )
