"""The local stack: PostgreSQL, an S3 server, an embedding server and workers as child processes.

`stack` is what the commands `up`, `down` and `quickstart` use; `profile` is how every other command finds a
running stack; the tests start single servers from `postgres`, `objectstore` and `modelserver`. Nothing in
this package prints: progress goes to a callback as `StackEvent`s.
"""
