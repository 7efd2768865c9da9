"""From YAML to live values: overrides, trees, checks, legality; then the session of one experiment and its verdicts.

No stage, store or report may live here, no device's own code and no pass; what an option is stands in `schema`.
"""
