"""Record existing training loops through torch's hooks, without changing their code."""
