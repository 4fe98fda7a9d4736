// Boost.JSON itself, from its headers: its library would have to be on every machine that imports
// the package, and Debian's static one cannot be part of a module.
#include <boost/json/src.hpp>
