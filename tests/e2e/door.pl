#!/usr/bin/env perl
# door.pl DIR words COUNT WORD   connects COUNT times to DIR/control and says WORD each time
# door.pl DIR hold COUNT SECONDS holds COUNT connections and says nothing
# door.pl DIR connect            connects once, or says why not
# door.pl DIR visit FILE         connects and reads the hello again and again until FILE is there
# Each prints what came of it. What NVIDIA's client takes for "no MPS here", and then goes on
# without, counts as refused: nobody listens, or the connection ends before its hello. Which of them
# it was the first time is printed behind.
use strict;
use warnings;
use Socket;

my ($dir, $what, @rest) = @ARGV;
my $door = pack_sockaddr_un("$dir/control");

my $why = '';

# A connection whose hello has come; undef where there was none.
sub greeted {
    socket(my $socket, AF_UNIX, SOCK_SEQPACKET, 0) or die "socket: $!\n";
    connect($socket, $door) or return refused("connect: $!");
    defined(recv($socket, my $hello, 64, 0)) or return refused("recv: $!");
    return length $hello == 9 ? $socket : refused('a hello of ' . length($hello) . ' bytes');
}

sub refused { $why ||= ": $_[0]"; return }

if ($what eq 'words') {
    my ($count, $word) = @rest;
    my $said = 0;
    for (1 .. $count) {
        my $socket = greeted() or next;
        send($socket, "OUTBCRED\0", 0);
        send($socket, pack('i', $word), 0);
        $said++;
    }
    print "said $said\n";
} elsif ($what eq 'hold') {
    my ($count, $seconds) = @rest;
    my @held;
    for (1 .. $count) {
        socket(my $socket, AF_UNIX, SOCK_SEQPACKET, 0) or die "socket: $!\n";
        connect($socket, $door) or last;
        push @held, $socket;
    }
    sleep $seconds;
} elsif ($what eq 'connect') {
    socket(my $socket, AF_UNIX, SOCK_SEQPACKET, 0) or die "socket: $!\n";
    connect($socket, $door) or die "connect: $!\n";
} elsif ($what eq 'visit') {
    my ($seen, $refused) = (0, 0);
    # With a rest: a machine that is emulated has other things to do.
    until (-e $rest[0]) { greeted() ? $seen++ : $refused++; select(undef, undef, undef, 0.02) }
    print "greeted $seen refused $refused$why\n";
} else {
    die "unknown: $what\n";
}
