conflict(%(names)s)
