"""The performance model of the TernGrad paper: its clusters, its networks, and what it published.

The paper (Wen et al., NeurIPS 2017, section 6) models how many images a second are trained on up to 512 GPUs, four to a
node, in two clusters: GTX 1080 with a PCI switch and 1 Gb/s Ethernet, and P100 with NVLink and 100 Gb/s InfiniBand. It
gives the curves, and neither the formulas nor the constants. Here everything but its points is ours.

What is taken from the published points: whether nodes average by a ring or by a tree, by what fits fp32 better; the
time of a step on one GPU, in fp32 and with TernGrad, whose difference is the codec; and of fp32 alone the time to
average over two nodes, which gives the rate between them, and over Ethernet its growth from 8 to 128 nodes, which gives
the latency. All other points are predictions. Nothing overlaps with backward: the points of fp32 leave no room for it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from terngrad.errors import ConfigurationError
from terngrad.methods import Dense, ParameterInfo, TernGrad, from_spec
from terngrad.perf.network import Cluster, Link
from terngrad.perf.profile import Gradient, Profile
from terngrad.perf.step import AllReduce, Coded, Line, Prediction, Sending, Served, exchanges_for

GPUS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
GPUS_OF_A_NODE = 4
BATCH = {"alexnet": 128, "googlenet": 64, "vgg-a": 32}  # of one GPU

# Images a second on GPUS, read off the paper's figures: within 3 up to 16 GPUs, within 50 to 100 above.
PUBLISHED: dict[tuple[str, str], dict[str, tuple[int, ...]]] = {
    ("paper-ethernet", "alexnet"): {
        "fp32": (395, 760, 1507, 720, 832, 1667, 3250, 6542, 13042, 25708),
        "terngrad": (388, 770, 1539, 2194, 3467, 6833, 13625, 26958, 53125, 99417),
    },
    ("paper-ethernet", "googlenet"): {
        "fp32": (174, 349, 694, 852, 1286, 2500, 4917, 9708, 19000, 36542),
        "terngrad": (174, 349, 697, 1234, 2332, 4458, 8792, 17167, 33167, 62542),
    },
    ("paper-ethernet", "vgg-a"): {
        "fp32": (95, 168, 319, 49, 53, 125, 208, 417, 833, 1667),
        "terngrad": (89, 174, 352, 322, 421, 875, 1667, 3250, 6417, 12583),
    },
    ("paper-infiniband", "alexnet"): {
        "fp32": (435, 866, 1733, 2784, 5297, 10345, 20394, 40689, 80886, 161476),
        "terngrad": (427, 853, 1711, 3345, 6646, 13202, 26502, 52906, 105614, 211130),
    },
    ("paper-infiniband", "googlenet"): {
        "fp32": (194, 388, 776, 1500, 2970, 5911, 11822, 23546, 46896, 93890),
        "terngrad": (194, 388, 772, 1539, 3069, 6108, 12217, 24532, 48965, 97930),
    },
    ("paper-infiniband", "vgg-a"): {
        "fp32": (108, 207, 409, 405, 720, 1281, 2660, 5123, 10246, 20295),
        "terngrad": (95, 194, 388, 716, 1409, 2759, 5517, 11133, 22167, 44236),
    },
}


@dataclass(frozen=True)
class Network:
    """How a cluster's nodes are connected."""

    within: Link  # nominal: a PCI switch, or NVLink
    tree: (
        bool  # between nodes. The points over Ethernet double from two to four nodes and then stay; a ring grows slowly
    )


CLUSTERS = {
    "paper-ethernet": Network(Link(0.0, 12e9), tree=True),
    "paper-infiniband": Network(Link(0.0, 40e9), tree=False),
}


def published_s(cluster: str, net: str, method: str, num_gpus: int) -> float:
    """Seconds of a step that the published throughput means."""
    return num_gpus * BATCH[net] / PUBLISHED[cluster, net][method][GPUS.index(num_gpus)]


def predict(
    cluster: str,
    net: str,
    parameters: Sequence[ParameterInfo],
    method: str,
    num_gpus: int,
    between: Link | None = None,
    num_servers: int = 0,
) -> Prediction:
    """A step of one of the paper's networks on one of its clusters, on any number of GPUs; `between` nodes there may be
    another link than the cluster's own, and parameter servers in place of workers that average among themselves.

    `terngrad-paper` is TernGrad as the paper models it: last layer and small parameters in fp32, the rest in two bits,
    summed on their way by a collective that takes account of nodes. Any other spec is a method of this package, by the
    better of its exchanges, which send from every worker to every other one. What a codec takes on these GPUs is known
    of TernGrad alone, and taken to be the same for all.
    """
    if (cluster, net) not in PUBLISHED:
        known = ", ".join(sorted({name for pair in PUBLISHED for name in pair}))
        raise ConfigurationError(
            f"{net!r} on {cluster!r}: the paper has {known}; pass one of its networks and clusters"
        )
    nodes, rest = divmod(num_gpus, GPUS_OF_A_NODE)
    if num_gpus < 1 or (nodes and rest):
        raise ConfigurationError(f"{num_gpus} GPUs: nodes have {GPUS_OF_A_NODE}; pass 1, 2, 3 or a multiple of that")
    network = CLUSTERS[cluster]
    numel = sum(parameter.numel for parameter in parameters)
    links = Cluster(
        max(1, nodes),
        between or Link(_latency(cluster), _rate(cluster, net, 4 * numel)),
        min(num_gpus, GPUS_OF_A_NODE),
        network.within,
    )
    compute_s = published_s(cluster, net, "fp32", 1)
    codec_s = max(0.0, published_s(cluster, net, "terngrad", 1) - compute_s) / 2
    profile = Profile(0.0, tuple(Gradient(parameter, compute_s) for parameter in parameters), 0.0)
    plan = (len(parameters),)
    each = Line(element_s=codec_s / numel)
    if num_servers:
        own = TernGrad.paper(codec="two-bit") if method == "terngrad-paper" else from_spec(method)
        free = Line() if isinstance(own, Dense) else each
        return Prediction(
            profile, plan, Served(own, encode=free, decode=free, add=free, num_servers=num_servers), links
        )
    ways = _ways(method, Line(codec_s), each, network.tree)
    found = [Prediction(profile, plan, way, links) for way in ways]
    return min(found, key=lambda prediction: prediction.step_s)


def _ways(method: str, there_and_back: Line, each: Line, tree: bool) -> list[Sending]:
    """How a method can be sent. In the package's own way every payload takes half of the codec's time."""
    if method in ("fp32", "fp16"):
        return [AllReduce(method, 4 if method == "fp32" else 2, by_nodes=True, tree=tree)]
    if method == "terngrad-paper":
        paper = TernGrad.paper(codec="two-bit")
        return [AllReduce(method, method=paper, cast=there_and_back, by_nodes=True, tree=tree)]
    own = from_spec(method)
    return [Coded(own, name, encode=each, decode=each, add=each) for name in exchanges_for(own)]


def _rate(cluster: str, net: str, num_bytes: int) -> float:
    """Bytes a second between two nodes, from what the second node adds to a step in fp32."""
    added = published_s(cluster, net, "fp32", 2 * GPUS_OF_A_NODE) - published_s(cluster, net, "fp32", GPUS_OF_A_NODE)
    return num_bytes / (added - 2 * _latency(cluster))


def _latency(cluster: str) -> float:
    """From what a step in fp32 grows by between 8 and 128 nodes, where the bytes are the same: the median network's.

    Of a ring they are not the same, and next to them InfiniBand's latency cannot be read off.
    """
    if not CLUSTERS[cluster].tree:
        return 0.0
    few, many = 32, 512
    messages = 2 * (many - few) / GPUS_OF_A_NODE
    grown = [published_s(cluster, net, "fp32", many) - published_s(cluster, net, "fp32", few) for net in BATCH]
    return statistics.median(grown) / messages
