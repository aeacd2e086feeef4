"""Record attention calls, measure heads, explain one head, and edit forwards."""
