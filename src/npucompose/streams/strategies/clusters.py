"""Critical paths on streams: the heaviest path is one cluster, then the heaviest of what is left, until nothing is.

Linear clustering: S. Kim, J. Browne, "A general approach to mapping of parallel computation upon multiprocessor
architectures", 1988. What a path weighs is asked once, not again after each cluster: on the named graphs of
`benchmarks/streams` the plans are the same.
"""

from __future__ import annotations

from npucompose.streams.strategies.instance import Instance


def by_critical_path(instance: Instance) -> list[int]:
    """The stream of each kernel: clusters go, the heaviest first, where the least work is (R. Graham, "Bounds on
    multiprocessing timing anomalies", 1969).

    Kernels of 5, 3 and 4 µs, the third reads both others, on two streams: [0, 1, 0].
    """
    streams, load = [0] * len(instance.work), [0.0] * instance.streams
    clusters = [(sum(instance.us[index] for index in members), members) for members in _critical_paths(instance)]
    for us, members in sorted(clusters, key=lambda cluster: -cluster[0]):
        stream = load.index(min(load))
        load[stream] += us
        for index in members:
            streams[index] = stream
    return streams


def _critical_paths(instance: Instance) -> list[list[int]]:
    urgency, paths = instance.urgency, list[list[int]]()
    left = sorted(range(len(urgency)), key=lambda index: (-urgency[index], index))
    taken = set[int]()
    for index in left:
        if index in taken:
            continue
        path, following = [index], [index]
        while following:
            following = [target for target in instance.then[path[-1]] if target not in taken]
            if following:
                path.append(max(following, key=lambda target: (urgency[target], -target)))
        taken.update(path)
        paths.append(path)
    return paths
