
pushenv CONTAINERROOT $root
pushenv RUNSCRIPTS $root/runscripts
pushenv RUNSCRIPTSPYTORCH $root/runscripts
pushenv PAYLOAD $root/payload
pushenv PAYLOADPYTORCH $root/payload
