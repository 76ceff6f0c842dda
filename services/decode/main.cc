#include "services/worker/worker_main.h"

int main(int argc, char** argv) { return sluice::services::WorkerMain(argc, argv, "decode"); }
