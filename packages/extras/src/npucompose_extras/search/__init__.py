"""search=optuna: points that are asked for one after another, each told what became of those before.

What asks Optuna may live here; how a point is run and recorded is any sweep's, and may not.
"""
