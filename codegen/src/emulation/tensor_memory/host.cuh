// The host's side of emulation: reads the first fault of a launch from the device.
#if !defined(FOURFOLD_DEVICE) && !defined(__CUDA_ARCH__)
#include <atomic>
#include <cstdio>
#include <cstring>

#include <cuda_runtime.h>

namespace fourfold_emulation {

inline std::atomic<cudaLibrary_t> loaded{nullptr};

template <class... Rest>
cudaError_t load_library(cudaLibrary_t *library, Rest... rest) {
  cudaError_t const error = cudaLibraryLoadData(library, rest...);
  loaded = error == cudaSuccess ? *library : nullptr;
  return error;
}

inline char const *text_of(uint32_t fault) {
  switch (fault) {
    case kTooManySms: return "an SM's number is too large";
    case kTooManyCtas: return "a CTA's number is too large";
    case kOccupied: return "the SM's tensor memory is never free";
    case kColumnsOfAllocation: return "tcgen05.alloc: not a power of two from 32 to 512 columns";
    case kAddressOfDealloc: return "tcgen05.dealloc: not what was allocated";
    case kBeyondAllocation: return "columns of tensor memory that are not allocated";
    case kLaneOfAddress: return "an address of tensor memory whose lane is not 0";
    case kLaneOfWarp: return "tcgen05.ld or tcgen05.st: lanes of another warp";
    case kSharedDescriptor: return "a shared memory descriptor that is not understood";
    case kInstructionDescriptor: return "an instruction descriptor that is not understood";
    case kScaleAddress: return "an address of scales that contradicts the instruction descriptor";
    case kPartialWarp: return "elect.sync: a part of a warp has queued instructions";
    case kQueueFull: return "too many instructions between two elect.sync";
    case kForeignQueue: return "two warps issue tcgen05.cp or tcgen05.mma at a time";
    case kStuck: return "a wait for a barrier in shared memory does not end";
    case kNoPeer: return "the other CTA of a pair has no tensor memory";
    case kGroup: return ".cta_group does not fit the cluster";
    case kMulticast: return "a multicast mask with CTAs that the cluster lacks";
    case kScalesDiffer: return "the four copies of SFA differ";
    case kBeyondShared: return "a shared memory descriptor beyond the CTA's shared memory";
    default: return "an unknown fault";
  }
}

}  // namespace fourfold_emulation

// Writes the first fault since the last call into `message`, and resets the state. Returns its number, 0 without a
// fault, and -1 if the state cannot be read. Call it when no launch is running.
extern "C" int32_t fourfold_fault(void *, char *message, size_t size) {
  using namespace fourfold_emulation;
  cudaLibrary_t const library = loaded;
  if (library == nullptr) {
    return 0;
  }
  void *at = nullptr;
  size_t bytes = 0;
  State state = {};
  if (cudaLibraryGetGlobal(&at, &bytes, library, "fourfold_state") != cudaSuccess || bytes != sizeof(State) ||
      cudaMemcpy(&state, at, sizeof(State), cudaMemcpyDeviceToHost) != cudaSuccess) {
    std::snprintf(message, size, "the state of the emulation cannot be read");
    return -1;
  }
  if (state.fault == kNone) {
    return 0;
  }
  std::snprintf(message, size, "fault %u: %s (0x%x, 0x%x, 0x%x; thread %u of CTA %u, %u, %u)", state.fault,
                text_of(state.fault), state.values[0], state.values[1], state.values[2], state.thread, state.block[0],
                state.block[1], state.block[2]);
  return cudaMemset(at, 0, sizeof(State)) == cudaSuccess ? static_cast<int32_t>(state.fault) : -1;
}

#define cudaLibraryLoadData fourfold_emulation::load_library
#endif
