"""What a run did and measured, as frozen records: the fields of report.json.

Nothing may live here that a configuration sets, that measures, or that knows how a report looks; no torch is loaded.
"""
