from minicaffe.device.threads cimport Threads

cdef extern from "minicaffe/device/context.hpp":
    struct HostKernel "mc::HostKernel":
        const char* name
        const unsigned* argument_sizes
        const void* (*const* pointers)() noexcept
    struct HostImage "mc::HostImage":
        pass
    HostImage image_of "mc::image_of"(const HostKernel* kernels, unsigned long long count) nogil
    struct CudaKernel "mc::cuda::Kernel":
        const HostKernel* host
        void** functions
    struct CudaStream "mc::cuda::Stream"
    struct CudaLibraries "mc::cuda::Libraries"  # its members are declared in cuda/libraries.pyx
    ctypedef int (*raise_function)(CudaStream*) except -1
    struct CudaStream "mc::cuda::Stream":
        void* handle
        int device
        int multiprocessors
        int capability
        int failed
        int recording
        long long launches
        double* scratch
        void* workspace
        long long workspace_bytes
        const double* rate
        const unsigned long long* drawn
        CudaLibraries* libraries
        void* (*load)(CudaStream*, CudaKernel*) noexcept nogil
        int (*start)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                     void*, void**, void**) noexcept nogil
        void (*fail)(CudaStream*, int, CudaKernel*, unsigned, unsigned) noexcept nogil
        int (*watch)(CudaStream*, CudaKernel*, void*, unsigned, unsigned, unsigned, unsigned, void**) noexcept nogil
        raise_function raise_error "raise"
        int (*activate)(CudaStream*) noexcept nogil
        int (*dry)() noexcept nogil
    struct Context "mc::Context":
        Threads threads
        CudaStream* stream
    const int kScratch "mc::cuda::kScratch"

cdef int current_gpu        # the GPU of GPU mode, also in CPU mode; -1 until one was chosen

cdef void set_active(CudaStream* stream) noexcept nogil
cdef Context cpu_context() noexcept nogil
cdef Context context() noexcept nogil
cdef bint on_device() noexcept nogil
cdef void choose_gpu(int index) noexcept
cdef void compute_on(CudaStream* stream) noexcept
cdef int settle(const Context& on) except -1
