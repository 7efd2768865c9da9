"""What a person or another tool reads of a run: terminal, report.json, pages by templates, tables, comparisons.

Reads values of results. Measures nothing, opens no device, knows neither stages nor where runs are stored.
"""
