
# The sources that every framework's library contains, as a target of their own. Flags and include paths match those
# of the frameworks' targets, so that ccache finds the objects again.
add_library(horovod_common OBJECT EXCLUDE_FROM_ALL ${SOURCES})
set_target_properties(horovod_common PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_include_directories(horovod_common PRIVATE ${EIGEN_INCLUDE_PATH} ${FLATBUFFERS_INCLUDE_PATH})
