#!/usr/bin/perl
# fake_daemon.pl SOCKET REPLY: a daemon that answers every call with one frame that holds REPLY, or,
# where REPLY begins with "raw:", with those bytes and no frame. Perl, because Debian always has it.
use strict;
use warnings;
use IO::Socket::UNIX;
my ($path, $reply) = @ARGV;
$SIG{PIPE} = 'IGNORE'; # a caller may only look whether somebody listens
unlink $path;
my $server = IO::Socket::UNIX->new(Local => $path, Listen => 8) or die "listen $path: $!";
chmod 0600, $path;
while (my $client = $server->accept) {
    sysread $client, my $request, 65536;
    syswrite $client, $reply =~ /^raw:(.*)/s ? $1 : pack('N/a*', $reply);
    close $client;
}
