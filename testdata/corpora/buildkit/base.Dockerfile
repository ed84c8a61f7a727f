# The image that stands in for busybox and alpine in BuildKit's tests.
FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "sh", "-ec", "/bin/busybox --install -s /bin; mkdir -p /etc /tmp /root /usr/bin /usr/sbin /sbin /home /dev; chmod 1777 /tmp; chmod 700 /root"]
COPY --chmod=644 <<passwd <<group <<alpine-release /etc/
root:x:0:0:root:/root:/bin/sh
daemon:x:1:1:daemon:/usr/sbin:/bin/false
bin:x:2:2:bin:/bin:/bin/false
nobody:x:65534:65534:nobody:/home:/bin/false
passwd
root:x:0:
daemon:x:1:
bin:x:2:
wheel:x:10:root
nobody:x:65534:
group
3.20.0
alpine-release
# Debian's busybox lacks these applets.
COPY --chmod=755 <<'adduser' <<'addgroup' /bin/
#!/bin/sh
# adduser [-D] [-u UID] [-G GROUP] NAME
uid=1000 group=
while getopts Du:G: o; do
  case $o in u) uid=$OPTARG ;; G) group=$OPTARG ;; esac
done
shift $((OPTIND - 1))
while grep -q "^[^:]*:x:$uid:" /etc/passwd; do uid=$((uid + 1)); done
gid=$(sed -n "s/^$group:x:\([0-9]*\):.*/\1/p" /etc/group)
[ -n "$group" ] || { gid=$uid; echo "$1:x:$gid:" >>/etc/group; }
echo "$1:x:$uid:$gid::/home/$1:/bin/sh" >>/etc/passwd
mkdir -p "/home/$1"
chown "$uid:$gid" "/home/$1"
adduser
#!/bin/sh
# addgroup [-g GID] NAME
gid=1000
[ "$1" != -g ] || { gid=$2; shift 2; }
echo "$1:x:$gid:" >>/etc/group
addgroup
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
CMD ["sh"]
