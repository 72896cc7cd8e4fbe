"""Start Python processes by forking one that has the heavy imports done.

A run on a CPU is about a dozen processes, and nearly all of its start-up is each of them importing
torch, verl and SGLang again: about 30 s of CPU time a process. Here one server process imports them
once; Ray's workers and SGLang's children are then forked from it in milliseconds and share its
memory.

    launcher --starts--> server (imports, then waits)
    raylet   --starts--> client --asks--> server --forks--> the worker itself
                            '--- lives as long as the worker, ends with its exit code

Ray runs the client in place of ``python`` (``runtime_env["py_executable"]``), multiprocessing too
(``set_executable``); both are upstream extension points. Only on the CPU: a process that may use
CUDA must not be forked from one that might have touched it.

preload.py   what is imported
server.py    the process that imports and forks
client.py    what stands in for ``python``; standard library only, starts in milliseconds
protocol.py  what the two say to each other
launch.py    start the server, write the stand-in, stop both
serve.py     the server of one node where Ray is there before the run
"""
