"""The watchdog, `stepward watchdog`: a process of its own that tells when supervision has stopped.

Reading order: `verdicts` (what it says), `sights` (what one look saw), `history` (what is remembered of looks) and
`judge` (what follows) are pure and tested by tables; `settling` keeps a verdict from flickering. Around them: `asking`
asks the nodes, `canaries` sends jobs through everything, `posting` and `telling` tell others, `pages` and `exposition`
answer those who ask, `self_check` ends a watchdog that hangs, `settings` has what it is told, `dog` is the loop.
"""
