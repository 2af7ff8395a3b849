"""A GPU that computes nothing: torch's CUDA build runs on it, and its memory is counted as on a real one.

NVIDIA's libraries are replaced by one of our own before torch is loaded: the dynamic linker takes a library that is
already there by its SONAME. Device memory is address space, counted against a card's capacity; kernels do nothing.
Everything else is torch's own: its operators, the caching allocator with its history, its out-of-memory error, streams,
graphs.

    cards           what a card is: the figures that torch and kernels ask for
    torch_symbols   what torch's libraries want of NVIDIA's, and what headers declare of it
    build           the libraries, built for the torch and the compiler at hand, once, in the user's cache
    process         how a process runs on it
    nccl_buffers    what NCCL takes of a GPU beside torch's allocator, as a range
    nvidia_smi      what `nvidia-smi` says there
    values/         what the operators that decide a size compute on the host, and what the program read
    sources/        the libraries in C, a file a subject
"""
