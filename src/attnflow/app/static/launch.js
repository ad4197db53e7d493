// The launch link has set the cookie; its token leaves the address bar and the history.
location.replace("/" + location.hash);
