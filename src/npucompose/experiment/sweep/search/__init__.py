"""search=optuna: points that are asked for one after another, each told what became of those before."""
