#!/usr/bin/perl
# borrowed.pl SOCKET: asks for GPU memory on a connection whose process has ended: one connects, has
# a child and ends; its pid is nobody's or anybody's then, and the child speaks. Prints the answer.
use strict;
use warnings;
use IO::Socket::UNIX;

my ($path) = @ARGV;
pipe my $answer, my $out or die $!;
my $first = fork;
if (!$first) {
  my $connection = IO::Socket::UNIX->new(Peer => $path) or die "$path: $!";
  my $connected = $$;
  exit 0 if fork;
  select undef, undef, undef, 0.01 while getppid == $connected;
  my $request = '{"memory":1024,"cards":1,"gpu":null,"compute":null,"priority":"normal","uid":null,"token":null}';
  my $body = qq({"version":1,"call":{"run":{"name":"borrowed","request":$request,"uid":$>}}});
  $connection->syswrite(pack("N", length $body) . $body);
  while (sysread($connection, my $head, 4) == 4) {
    sysread $connection, my $said, unpack "N", $head;
    next if $said =~ /"progress"/;
    syswrite $out, "$said\n";
    last;
  }
  exit 0;
}
close $out;
waitpid $first, 0;
print while <$answer>;
