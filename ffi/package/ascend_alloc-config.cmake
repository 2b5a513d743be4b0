# find_package(ascend_alloc): the targets ascend_alloc::ascend_alloc (shared) and ascend_alloc::static.

get_filename_component(_ascend_alloc_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET ascend_alloc::ascend_alloc)
    add_library(ascend_alloc::ascend_alloc SHARED IMPORTED)
    set_target_properties(ascend_alloc::ascend_alloc PROPERTIES
        IMPORTED_LOCATION "${_ascend_alloc_prefix}/lib/libascend_alloc.so"
        IMPORTED_SONAME "libascend_alloc.so"
        INTERFACE_INCLUDE_DIRECTORIES "${_ascend_alloc_prefix}/include")
endif()

if(NOT TARGET ascend_alloc::static)
    add_library(ascend_alloc::static STATIC IMPORTED)
    set_target_properties(ascend_alloc::static PROPERTIES
        IMPORTED_LOCATION "${_ascend_alloc_prefix}/lib/libascend_alloc.a"
        INTERFACE_INCLUDE_DIRECTORIES "${_ascend_alloc_prefix}/include"
        INTERFACE_LINK_LIBRARIES "pthread;dl;m;rt;util;gcc_s")
endif()

unset(_ascend_alloc_prefix)
