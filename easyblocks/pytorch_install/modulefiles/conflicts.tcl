conflict %(names)s
