#!/usr/bin/perl
# process_escape.pl ask SOCKET CALL [PID]   one call as JSON, with a pidfd of PID; prints the answer
# process_escape.pl twice SOCKET CALL CALL  two calls at once; prints both answers
# process_escape.pl hold SOCKET COUNT FILE  COUNT idle connections until FILE is there; prints COUNT
# process_escape.pl hand COMMAND...         COMMAND (mpsgate run) has a door of its own, and hands a
#                                           connection on: to us, outside, who speak as its client
# process_escape.pl terminal TEXT           types TEXT into the terminal that we were started from
use strict;
use warnings;
use Fcntl;
use IO::Socket::UNIX;
use Socket;
require 'syscall.ph';

my ($what, @rest) = @ARGV;
my %verbs = (ask => \&ask, twice => \&twice, hold => \&hold, hand => \&hand, connect => \&connect_and_give, terminal => \&terminal);
($verbs{$what // ''} or die "unknown verb\n")->(@rest);

sub ask {
    my ($path, $call, $pid) = @_;
    my $socket = IO::Socket::UNIX->new(Peer => $path) or die "connect: $!\n";
    my $frame = pack 'N/a*', qq({"version":1,"call":$call});
    if ($pid) {
        my $pidfd = syscall(SYS_pidfd_open(), $pid + 0, 0);
        $pidfd >= 0 or die "pidfd_open: $!\n";
        give($socket, $pidfd, $frame);
    } else {
        syswrite $socket, $frame;
    }
    answer($socket);
}

sub twice {
    my ($path, @calls) = @_;
    my @sockets = map { IO::Socket::UNIX->new(Peer => $path) or die "connect: $!\n" } @calls;
    syswrite $sockets[$_], pack 'N/a*', qq({"version":1,"call":$calls[$_]}) for 0 .. $#calls;
    answer($_) for @sockets;
}

sub answer {
    my ($socket) = @_;
    while (sysread($socket, my $head, 4) == 4) {
        my ($length, $said) = (unpack('N', $head), '');
        sysread $socket, $said, $length - length $said, length $said while length $said < $length;
        next if $said =~ /^\{"progress"/;
        print "$said\n";
        return;
    }
    print "no answer\n";
}

sub hold {
    my ($path, $count, $file) = @_;
    my @held = grep { $_ } map { IO::Socket::UNIX->new(Peer => $path) } 1 .. $count;
    $| = 1;
    print scalar(@held), "\n";
    select undef, undef, undef, 0.05 until -e $file;
}

# The grant's part: connects at its door, and gives the connection to whoever has the other end.
sub connect_and_give {
    socket(my $door, AF_UNIX, SOCK_SEQPACKET, 0) or die "socket: $!\n";
    connect $door, pack_sockaddr_un("$ENV{CUDA_MPS_PIPE_DIRECTORY}/control") or die "connect: $!\n";
    open my $other, '+<&=', 3 or die "descriptor 3: $!\n";
    give($other, fileno $door, 'x');
    sysread $other, my $until, 1; # until it is closed
}

sub hand {
    my @command = @_;
    socketpair(my $own, my $theirs, AF_UNIX, SOCK_STREAM, 0) or die "socketpair: $!\n";
    if (!fork) {
        close $own;
        require POSIX;
        POSIX::dup2(fileno $theirs, 3) or die "dup2: $!\n";
        $^F = 3;
        open my $kept, '+<&=', 3;
        fcntl $kept, F_SETFD, 0;
        exec @command, 'perl', $0, 'connect';
    }
    close $theirs;
    my $fd = taken($own);
    open my $door, '+<&=', $fd or die "no descriptor came\n";
    defined recv($door, my $hello, 64, 0) or die "no hello: $!\n";
    send $door, "OUTBCRED\0", 0;
    send $door, pack('i', 2), 0; # a CUDA client's word
    my @heard;
    while (defined recv($door, my $said, 64, 0)) {
        last if $said eq '';
        push @heard, unpack 'H*', $said;
    }
    print join(" ", "heard", @heard), "\n";
}

# TIOCSTI of tty_ioctl(4).
sub terminal {
    open my $tty, '+<', '/dev/tty' or die "no terminal: $!\n";
    for my $byte (split //, "$_[0]\n") { ioctl $tty, 0x5412, $byte or die "TIOCSTI: $!\n" }
}

# SCM_RIGHTS of unix(7), on a machine of 64 bits.
sub give {
    my ($socket, $fd, $bytes) = @_;
    my $control = pack 'Q l l l x4', 20, SOL_SOCKET, 1, $fd;
    message(SYS_sendmsg(), $socket, \$bytes, \$control) >= 0 or die "sendmsg: $!\n";
}

sub taken {
    my ($socket) = @_;
    my ($bytes, $control) = ("\0" x 16, "\0" x 24);
    message(SYS_recvmsg(), $socket, \$bytes, \$control) > 0 or die "recvmsg: $!\n";
    return (unpack 'Q l l l', $control)[3];
}

sub message {
    my ($call, $socket, $bytes, $control) = @_;
    my $address = sub { unpack 'Q', pack 'P', ${$_[0]} };
    my $vector = pack 'Q Q', $address->($bytes), length $$bytes;
    my $header = pack 'Q L x4 Q Q Q Q l x4', 0, 0, $address->(\$vector), 1, $address->($control), length $$control, 0;
    return syscall $call, fileno($socket), $header, 0;
}
