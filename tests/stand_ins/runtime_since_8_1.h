/* The part of the stand-in that CANN 8.0 lacks; included by runtime.c, whose helpers it uses. */

aclError aclsysGetVersionNum(char *pkgName, int32_t *versionNum) {
    ENTER("%s", pkgName);
    *versionNum = 90000000;
    return 0;
}

aclError aclrtGetPrimaryCtxState(int32_t deviceId, uint32_t *flags, int32_t *active) {
    ENTER("%d", deviceId);
    *flags = 0;
    *active = references[deviceId] > 0;
    return 0;
}

aclError aclrtCtxGetCurrentDefaultStream(aclrtStream *stream) {
    ENTER("%s", "");
    NEEDS_CONTEXT();
    *stream = (char *)current + 1;
    return 0;
}

aclError aclrtRegDeviceStateCallback(const char *regName, aclrtDeviceStateCallback callback, void *args) {
    ENTER("%s, %d", regName, callback != NULL);
    if (callback != NULL) {
        callback(1, ACL_RT_DEVICE_STATE_RESET_PRE, args);
    }
    return 0;
}

aclError aclrtRegStreamStateCallback(const char *regName, aclrtStreamStateCallback callback, void *args) {
    ENTER("%s, %d", regName, callback != NULL);
    (void)args;
    return 0;
}

aclError aclmdlRICaptureGetInfo(aclrtStream stream, aclmdlRICaptureStatus *status, aclmdlRI *modelRI) {
    ENTER("%p", stream);
    NOT_NULL(stream);
    *status = (aclmdlRICaptureStatus)capture_status;
    *modelRI = capture_status == ACL_MODEL_RI_CAPTURE_STATUS_NONE ? NULL : (aclmdlRI)&capture_status;
    return 0;
}

aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode *mode) {
    ENTER("%d", (int)*mode);
    *mode = ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL;
    return 0;
}

aclError aclmdlRIDestroyRegisterCallback(aclmdlRI modelRI, aclrtCallback func, void *userData) {
    ENTER("%p", modelRI);
    func(userData);
    return 0;
}

aclError aclrtFreeWithDevSync(void *devPtr) {
    ENTER("%p", devPtr);
    return 0;
}

aclError aclrtMemGetAddressRange(void *ptr, void **pbase, size_t *psize) {
    ENTER("%p", ptr);
    *pbase = (void *)((uintptr_t)ptr & ~(uintptr_t)0x1fffff);
    *psize = 2 << 20;
    return 0;
}

aclError aclrtFreeHostWithDevSync(void *hostPtr) {
    ENTER("%p", hostPtr);
    return 0;
}

aclError aclrtHostRegisterV2(void *ptr, uint64_t size, uint32_t flag) {
    ENTER("%p, %llu, %#x", ptr, (unsigned long long)size, flag);
    return 0;
}

aclError aclrtHostMemMapCapabilities(uint32_t deviceId, uint32_t hacType, uint32_t *capabilities) {
    ENTER("%u, %u", deviceId, hacType);
    *capabilities = 0;
    return 0;
}

aclError aclrtHostGetDevicePointer(void *pHost, void **pDevice, uint32_t flag) {
    ENTER("%p, %u", pHost, flag);
    *pDevice = pHost;
    return 0;
}

aclError aclrtAllocatorGetByStream(aclrtStream stream, aclrtAllocatorDesc *allocatorDesc,
                                   aclrtAllocator *allocator, aclrtAllocatorAllocFunc *allocFunc,
                                   aclrtAllocatorFreeFunc *freeFunc,
                                   aclrtAllocatorAllocAdviseFunc *allocAdviseFunc,
                                   aclrtAllocatorGetAddrFromBlockFunc *getAddrFromBlockFunc) {
    ENTER("%p", stream);
    *allocatorDesc = (void *)0x40;
    *allocator = (void *)0x50;
    *allocFunc = NULL;
    *freeFunc = NULL;
    *allocAdviseFunc = NULL;
    *getAddrFromBlockFunc = NULL;
    return 0;
}

#ifndef STAND_IN_WITHOUT_VMM
aclError aclrtMemSetAccess(void *virPtr, size_t size, aclrtMemAccessDesc *desc, size_t count) {
    ENTER("%p, %zu, flags=%d, type=%d, id=%u, %zu", virPtr, size, (int)desc->flags, (int)desc->location.type,
          desc->location.id, count);
    return 0;
}

aclError aclrtMemGetAccess(void *virPtr, aclrtMemLocation *location, uint64_t *flag) {
    ENTER("%p, id=%u", virPtr, location->id);
    *flag = ACL_RT_MEM_ACCESS_FLAGS_READWRITE;
    return 0;
}

aclError aclrtMemRetainAllocationHandle(void *virPtr, aclrtDrvMemHandle *handle) {
    ENTER("%p", virPtr);
    *handle = fresh(&next_handle, 16);
    return 0;
}

aclError aclrtMemGetAllocationPropertiesFromHandle(aclrtDrvMemHandle handle, aclrtPhysicalMemProp *prop) {
    ENTER("%p", handle);
    memset(prop, 0, sizeof *prop);
    prop->memAttr = ACL_MEM_HUGE;
    prop->location.id = 1;
    prop->location.type = ACL_MEM_LOCATION_TYPE_DEVICE;
    return 0;
}

aclError aclrtMemExportToShareableHandleV2(aclrtDrvMemHandle handle, uint64_t flags,
                                           aclrtMemSharedHandleType shareType, void *shareableHandle) {
    ENTER("%p, %llu, %d", handle, (unsigned long long)flags, (int)shareType);
    memset(shareableHandle, 0x5a, sizeof(aclrtMemFabricHandle));
    return 0;
}

aclError aclrtMemImportFromShareableHandleV2(void *shareableHandle, aclrtMemSharedHandleType shareType,
                                             uint64_t flags, aclrtDrvMemHandle *handle) {
    ENTER("%#x, %d, %llu", ((unsigned char *)shareableHandle)[127], (int)shareType, (unsigned long long)flags);
    *handle = fresh(&next_handle, 16);
    return 0;
}

aclError aclrtMemSetPidToShareableHandleV2(void *shareableHandle, aclrtMemSharedHandleType shareType, int32_t *pid,
                                           size_t pidNum) {
    ENTER("%#x, %d, %d, %zu", ((unsigned char *)shareableHandle)[127], (int)shareType, pidNum ? pid[0] : 0, pidNum);
    return 0;
}
#endif
