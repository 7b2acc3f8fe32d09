/* A library whose names begin like the driver's: none of them may be taken for one of its. */
int cudnnCreate(void);
int cublasCreate_v2(void);
int curl_easy_init(void);
int cudaMalloc(void);

int cudnnCreate(void) {
    return 1;
}

int cublasCreate_v2(void) {
    return 2;
}

int curl_easy_init(void) {
    return 3;
}

int cudaMalloc(void) {
    return 4;
}
