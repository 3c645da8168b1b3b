"""Networks of deep Q-learning: action values, and distributions of the return of each action."""
