hpcc_fix() {
	for hpcc_d in /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin; do
		case ":${PATH:-}:" in *":$hpcc_d:"*) ;; *) PATH=${PATH:+$PATH:}$hpcc_d ;; esac
	done
	export PATH
}
if [ -d /.singularity.d/env ]; then
	for hpcc_f in /.singularity.d/env/*.sh; do
		[ -f "$hpcc_f" ] || continue
		. "$hpcc_f"
		case $hpcc_f in *docker*) hpcc_fix ;; esac
	done
elif [ -f /environment ]; then
	. /environment
	hpcc_fix
fi
: "${UID:=$HPCC_UID}"
for hpcc_n in $HPCC_SET; do
	eval "hpcc_v=\$HPCC_SET_$hpcc_n"
	[ -z "${HPCC_EVAL:-}" ] || eval "hpcc_v=\"$hpcc_v\""
	case $hpcc_n in
	PREPEND_PATH) export PATH="$hpcc_v${PATH:+:$PATH}" ;;
	APPEND_PATH) export PATH="${PATH:+$PATH:}$hpcc_v" ;;
	PREPEND_LD_LIBRARY_PATH) export LD_LIBRARY_PATH="$hpcc_v${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" ;;
	APPEND_LD_LIBRARY_PATH) export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$hpcc_v" ;;
	*) export "$hpcc_n=$hpcc_v" ;;
	esac
	unset "HPCC_SET_$hpcc_n"
done
for hpcc_n in ${HPCC_HOST:-}; do
	eval "[ -n \"\${$hpcc_n+x}\" ] || export \"$hpcc_n=\$HPCC_HOST_$hpcc_n\""
	unset "HPCC_HOST_$hpcc_n"
done
unset hpcc_d hpcc_f hpcc_n hpcc_v HPCC_HOST HPCC_SET HPCC_EVAL HPCC_UID
exec "$@"
