#include "services/worker/worker_process.h"

int main(int argc, char** argv) { return sluice::services::WorkerMain(argc, argv, "decode"); }
