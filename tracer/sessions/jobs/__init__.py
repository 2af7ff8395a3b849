"""Jobs of several ranks: run one after another on the null GPU, their results merged, their recordings read."""
