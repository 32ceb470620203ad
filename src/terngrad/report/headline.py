"""The words at the top of a report: what was run, and what came out in a few figures."""

from __future__ import annotations

from collections.abc import Sequence

from terngrad.report.markup import Markup, tag
from terngrad.report.summary import Entry, Group
from terngrad.report.tables import run_name
from terngrad.report.text import link_text, metric_text, plural, target_text, times


def _all_values(group: Group, key: str) -> str:
    """What the runs say of a setting, each value once; nothing where they do not say it."""
    found = [entry.trace.config.get(key) for entry in group.entries]
    texts = [f"{value:,}" if isinstance(value, int) else str(value) for value in found if value not in (None, "")]
    return " or ".join(dict.fromkeys(texts))


def _counted(group: Group, key: str, noun: str) -> str:
    values = _all_values(group, key)
    return plural(values, noun) if values else ""


def _conditions(entry: Entry) -> list[str]:
    config = entry.trace.config
    virtual, servers = config.get("virtual_workers"), config.get("servers")
    workers = plural(virtual, "virtual worker") if virtual else plural(config.get("workers", 1), "worker")
    return [workers, plural(servers, "server") if servers else "", "" if virtual else link_text(config.get("link"))]


def conditions(group: Group) -> list[str]:
    """Who trained, over what."""
    each = zip(*(_conditions(entry) for entry in group.entries), strict=True)
    facts = [" or ".join(dict.fromkeys(fact for fact in column if fact)) for column in each]
    return [fact for fact in facts if fact]


def workload(group: Group) -> list[str]:
    """What was trained, and for how long."""
    sizes = dict.fromkeys(f"{entry.trace.num_parameters:,}" for entry in group.entries if entry.trace.num_parameters)
    batches, seeds = _all_values(group, "batch"), _all_values(group, "seed")
    facts = [
        f"{' or '.join(sizes)} parameters" if sizes else "",
        _counted(group, "steps", "step"),
        f"batch of {batches}" if batches else "",
        f"seed {seeds}" if seeds else "",
    ]
    return [fact for fact in facts if fact]


def default_title(groups: Sequence[Group]) -> str:
    """Recipe, workers and link; of several recipes their names."""
    if len(groups) == 1:
        return " · ".join([groups[0].recipe, *conditions(groups[0])])
    return ", ".join(group.recipe for group in groups)


def facts_line(group: Group, with_conditions: bool) -> Markup:
    """What stands under a heading; the conditions may be in it already."""
    return tag("p", " · ".join([*(conditions(group) if with_conditions else ()), *workload(group)]), class_="facts")


def spotlight(group: Group) -> Entry | None:
    """The run to compare with the first: the soonest at the target, else the one with the shortest step."""
    others = [entry for entry in group.entries[1:] if entry.trace.communicates and entry.summary.step_s is not None]
    reaching = [entry for entry in others if entry.summary.to_target_s is not None]
    if reaching:
        return min(reaching, key=lambda entry: entry.summary.to_target_s or 0.0)
    return min(others, key=lambda entry: entry.summary.step_s or 0.0, default=None)


def _figure(ratio: float | None, better: str, worse: str) -> Markup:
    if ratio is None:
        return Markup()
    number, words = (times(ratio), better) if ratio >= 1 else (times(1 / ratio), worse)
    return tag("div", tag("dd", number), tag("dt", words))


def key_figures(group: Group) -> Markup:
    """One run against the first, in up to four figures."""
    chosen = spotlight(group)
    if chosen is None:
        return Markup()
    first = group.entries[0]
    parts = [
        _figure(group.ratio(chosen), "fewer bytes a step", "more bytes a step"),
        _figure(group.speed_up(chosen), "faster step", "slower step"),
    ]
    ours, theirs = chosen.summary.to_target_s, first.summary.to_target_s
    if group.target is not None and ours and theirs:
        target = target_text(group.target, group.metric)
        parts.append(_figure(theirs / ours, f"sooner at {target} {group.metric}", f"later at {target} {group.metric}"))
    if chosen.summary.final is not None and first.summary.final is not None:
        final, other = (metric_text(entry.summary.final or 0.0, group.metric) for entry in (chosen, first))
        parts.append(tag("div", tag("dd", final), tag("dt", f"final {group.metric}, against {other}")))
    heading = tag("p", run_name(chosen), tag("span", " against ", class_="against"), run_name(first), class_="versus")
    return tag("div", heading, tag("dl", *parts), class_="key-figures")
