# SPDX-License-Identifier: MIT
# nginx: a master and two workers under another user, a shared zone, a thread pool, a kept-alive client.
inside() {
	mkdir -p $RUN/www $RUN/tmp
	head -c 300000 /dev/zero | tr '\0' x >$RUN/www/big
	echo hello >$RUN/www/index.html
	cat >$RUN/nginx.conf <<-EOF2
		user www-data;
		daemon off; worker_processes 2; pid $RUN/nginx.pid; error_log $RUN/error.log;
		thread_pool default threads=4;
		events { worker_connections 64; use epoll; }
		http {
		 access_log off; aio threads; sendfile on;
		 client_body_temp_path $RUN/tmp/b; proxy_temp_path $RUN/tmp/p; fastcgi_temp_path $RUN/tmp/f;
		 uwsgi_temp_path $RUN/tmp/u; scgi_temp_path $RUN/tmp/s;
		 limit_req_zone \$binary_remote_addr zone=z:1m rate=1000r/s;
		 keepalive_timeout 36000; keepalive_requests 100000;
		 server { listen 127.0.0.1:8080; root $RUN/www; limit_req zone=z burst=100; }
		}
	EOF2
	chmod 755 $RUN
	nginx -c $RUN/nginx.conf &
	eventually curl -sfo /dev/null http://127.0.0.1:8080/
	session client python3 -u -c '
import http.client, sys
c = http.client.HTTPConnection("127.0.0.1", 8080); n = 0
for line in sys.stdin:
    c.request("GET", "/" + line.strip()); r = c.getresponse(); n += 1
    print("got", n, r.status, len(r.read()), c.sock.getsockname()[1], flush=True)'
	hold
}

ready() {
	curl -sf http://127.0.0.1:8080/ | grep -q hello && [ -e $RUN/client.out ]
}

# the client's connection stays the same one
probe() {
	[ "$(curl -sf http://127.0.0.1:8080/big | wc -c)" = 300000 ]
	curl -sf http://127.0.0.1:8080/ | grep -q hello
	ask client big 'got .* 200 300000'
	expect_next "$(tail -n1 $RUN/client.out | cut -d' ' -f2)"
	[ "$(cut -d' ' -f5 $RUN/client.out | sort -u | wc -l)" = 1 ]
}
